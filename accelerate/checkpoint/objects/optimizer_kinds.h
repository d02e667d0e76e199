/// How one optimizer's options and state are saved: field by field for the optimizers of LibTorch
/// and of this library, and as an archive of its own for any other.
///
/// Errors: c10::ValueError naming the field.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>
#include <nlohmann/json.hpp>

#include "accelerate/tensors/state_dict.h"

namespace accelerate::internal {

/// The parameter that a state belongs to.
struct StateOwner {
  const at::Tensor& parameter;
  /// The number of elements of all parameters of its group.
  int64_t group_numel;
  /// Whether moments are float32 at least, whatever the parameter is.
  bool wide_moments = false;
};

/// What a tensor of a state must be.
struct StateTensorRule {
  std::vector<int64_t> sizes;
  /// Absent: any.
  std::optional<at::ScalarType> dtype;
  /// Whether it lies in memory as the parameter does.
  bool like_parameter = false;
  bool required = false;
};

/// Returns the tensor of a saved state's field, converted as the rule demands; undefined if the
/// state has none.
using TakeTensor = std::function<at::Tensor(const std::string& field, const StateTensorRule& rule)>;

class OptimizerKind {
 public:
  virtual ~OptimizerKind() = default;

  virtual const char* name() const = 0;

  virtual nlohmann::ordered_json options(const torch::optim::OptimizerOptions& options) const = 0;
  virtual std::unique_ptr<torch::optim::OptimizerOptions> read_options(
      const nlohmann::ordered_json& values, const std::string& where) const = 0;
  /// \pre Both are of this kind.
  virtual void assign(torch::optim::OptimizerOptions& options,
                      torch::optim::OptimizerOptions& from) const = 0;

  /// Appends the tensors, named `prefix` + field, and returns the rest.
  virtual nlohmann::ordered_json state(const torch::optim::OptimizerParamState& state,
                                       const std::string& prefix, NamedTensors& tensors) const = 0;
  virtual std::unique_ptr<torch::optim::OptimizerParamState> read_state(
      const nlohmann::ordered_json& values, const std::string& where, const StateOwner& owner,
      const TakeTensor& take) const = 0;
};

/// Null for a class that is not exactly one of them: a derived class may add fields of its own.
const OptimizerKind* find_optimizer_kind(const torch::optim::Optimizer& optimizer);

/// The state of an optimizer that only its own `save` and `load` understand, as a uint8 vector.
///
/// The bytes are an archive of LibTorch's, a zip with pickles and the source of TorchScript
/// classes, which LibTorch executes when it reads them. So an archive is checked first, and refused
/// unless its classes are only names and types of members, as an OutputArchive makes them of
/// tensors and values. Errors: c10::ValueError if the optimizer saves nothing, or objects with
/// code.
at::Tensor optimizer_archive(const torch::optim::Optimizer& optimizer);

/// \pre A contiguous uint8 vector on the CPU.
/// Errors: c10::ValueError for bytes that hold code, or that the optimizer cannot load; it is as it
///         was then, as far as its own load brings back what it saves.
void load_optimizer_archive(torch::optim::Optimizer& optimizer, const at::Tensor& archive);

}  // namespace accelerate::internal
