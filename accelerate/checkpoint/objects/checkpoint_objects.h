/// The options of Accelerator::save_state and load_state, and what these include besides prepared
/// objects: the user's own objects, and hooks that are called before.
#pragma once

#include <concepts>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "accelerate/base/enums.h"
#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {

struct SaveStateOptions {
  /// False has no effect but one warning: pickle is never written.
  bool safe_serialization = true;
  /// Returns when the state is copied to the host's memory, and writes it behind training.
  /// Optimizer states on the host are copied behind training too, and the next step() waits for
  /// that copy. Memory for one copy is kept. The next save_state, load_state or wait_for_save
  /// throws the save's errors, including an optimizer's state that changed too early, other than by
  /// its prepared step().
  bool asynchronous = false;
  /// Returns, or commits, when all data is on the disk itself. False is faster: the checkpoint
  /// survives a crash of processes, but perhaps not of the machine.
  bool durable = true;
  /// In what form models and optimizers are saved that are sharded over ranks. Each rank's shards,
  /// which any layout loads (kShardedStateDict); whole, as rank 0 gathers them one tensor at a time
  /// (kFullStateDict), which no other rank has more than one of; or each rank's part of the models
  /// as it is, for the same layout (kLocalStateDict). Absent: shards.
  std::optional<StateDictType> state_dict_type = std::nullopt;
  /// How good the state is, the same on all ranks: the greater the better, so that a loss is given
  /// with a minus. ProjectConfiguration::total_limit never removes the best checkpoint, and
  /// LoadStateOptions::best finds it. A number that is not finite is none, with a warning.
  std::optional<double> metric = std::nullopt;
};

struct LoadStateOptions {
  /// Whether a model's missing and unexpected tensors are errors.
  bool strict = true;
  /// To which memory the state of an optimizer is read first: "cpu" or "on_device", the rank's own
  /// device, which takes it in pieces of a few MiB and spares the host's memory. Absent: on_device
  /// with several ranks. The state ends on the devices of its parameters in any case. Weights are
  /// always read into their parameters, tensors of registered objects to the CPU. Other texts are
  /// errors.
  std::optional<std::string> map_location = std::nullopt;
  /// Without an input_dir: the complete checkpoint with the greatest SaveStateOptions::metric, the
  /// older among equal ones, and not the latest.
  bool best = false;
};

/// A registered object, without its type.
struct CheckpointedObject {
  std::function<StateDict()> state_dict;
  std::function<void(const StateDict&)> load_state_dict;
};

namespace internal {

template <typename T>
concept JsonStateful = requires(T& object, const T& constant, const nlohmann::ordered_json& state) {
  { constant.state_dict() } -> std::convertible_to<nlohmann::ordered_json>;
  object.load_state_dict(state);
};

// The object outlives what these return.
template <Stateful T>
CheckpointedObject checkpointed(T& object) {
  return {.state_dict = [&object] { return StateDict(object.state_dict()); },
          .load_state_dict = [&object](const StateDict& state) { object.load_state_dict(state); }};
}
template <JsonStateful T>
  requires(!Stateful<T>)
CheckpointedObject checkpointed(T& object) {
  return {.state_dict = [&object] { return StateDict{.values = object.state_dict()}; },
          .load_state_dict =
              [&object](const StateDict& state) { object.load_state_dict(state.values); }};
}
CheckpointedObject checkpointed(torch::nn::Module& module);
CheckpointedObject checkpointed(torch::optim::Optimizer& optimizer);

}  // namespace internal

/// The objects that `Accelerator::register_for_checkpointing` takes: objects with state_dict and
/// load_state_dict (of StateDicts or of JSON), modules and optimizers.
template <typename T>
concept Checkpointable = requires(T& object) { internal::checkpointed(object); };

using Modules = std::vector<std::shared_ptr<torch::nn::Module>>;

/// Called on every rank before a state is saved, with the prepared models, the weights of each that
/// will be saved, and the checkpoint's folder: files written there become part of the checkpoint.
/// A hook that erases an entry of `weights` saves that model itself.
using SaveStatePreHook = std::function<void(
    const Modules& models, std::vector<NamedTensors>& weights, const std::string& output_dir)>;
/// Called on every rank before a state is loaded. A hook that erases entries of `models` loads
/// those models itself.
using LoadStatePreHook = std::function<void(Modules& models, const std::string& input_dir)>;

/// Removable functions, called in the order in which they were added.
template <typename Hook>
class HookList {
 public:
  class Handle {
   public:
    /// Removes the function. It may be called again, also after the end of the list.
    void remove() {
      if (const auto hooks = hooks_.lock()) hooks->erase(number_);
    }

   private:
    friend class HookList;
    Handle(std::weak_ptr<std::map<int, Hook>> hooks, int number)
        : hooks_(std::move(hooks)), number_(number) {}
    std::weak_ptr<std::map<int, Hook>> hooks_;
    int number_;
  };

  Handle add(Hook hook) {
    hooks_->emplace(++last_, std::move(hook));
    return Handle(hooks_, last_);
  }

  template <typename... Arguments>
  void call(Arguments&&... arguments) const {
    // A hook may remove itself.
    const std::map<int, Hook> hooks = *hooks_;
    for (const auto& [number, hook] : hooks) hook(arguments...);
  }

 private:
  std::shared_ptr<std::map<int, Hook>> hooks_ = std::make_shared<std::map<int, Hook>>();
  int last_ = 0;
};

}  // namespace accelerate
