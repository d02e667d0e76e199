/// The state with which an object goes on where it stood, as a value: tensors by name, and
/// everything else.
///
/// It is what objects give to a checkpoint and get back from it, and what one file of a checkpoint
/// holds.
#pragma once

#include <concepts>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
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

}  // namespace accelerate
