/// The state with which an object goes on where it stood, as a value: tensors by name, and
/// everything else.
///
/// It is what objects give to a checkpoint and get back from it, and what one file of a checkpoint
/// holds.
#pragma once

#include <concepts>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

namespace accelerate {

/// In an order of their own, which files keep. Names are distinct.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

struct StateDict {
  NamedTensors tensors;
  /// An object, or null if there are no values.
  nlohmann::ordered_json values;
};

/// The objects that `Accelerator::register_for_checkpointing` takes.
template <typename T>
concept Stateful = requires(T& object, const T& constant, const StateDict& state) {
  { constant.state_dict() } -> std::convertible_to<StateDict>;
  object.load_state_dict(state);
};

/// Reads an optimizer's state while training goes on, as an asynchronous save does.
class OptimizerStateReader {
 public:
  virtual ~OptimizerStateReader() = default;

  /// Returns when it has read all, for the state is about to change. Throws nothing. By the rank's
  /// thread.
  virtual void finish() noexcept = 0;
};

namespace internal {

/// The tensors of a saved state, which messages call `where`, that nothing has asked for yet.
/// Errors: c10::ValueError for two of one name.
class UntakenTensors {
 public:
  UntakenTensors(NamedTensors tensors, std::string where) : where_(std::move(where)) {
    for (auto& [name, tensor] : tensors) {
      TORCH_CHECK_VALUE(tensors_.emplace(name, std::move(tensor)).second, where_, " has two \"",
                        name, "\"");
    }
  }

  /// Undefined where there is none.
  at::Tensor take(const std::string& name) {
    auto taken = tensors_.extract(name);
    return taken ? std::move(taken.mapped()) : at::Tensor();
  }
  /// Errors: c10::ValueError naming a tensor that is left, and what is wrong with it.
  void check_all_taken(const char* what) const {
    TORCH_CHECK_VALUE(tensors_.empty(), where_, " has \"", tensors_.begin()->first, "\", which ",
                      what);
  }

 private:
  std::string where_;
  std::map<std::string, at::Tensor> tensors_;
};

}  // namespace internal

}  // namespace accelerate
