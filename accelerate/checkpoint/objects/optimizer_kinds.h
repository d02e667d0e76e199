/// The optimizers whose options and state are known field by field: LibTorch's and this library's.
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

/// Whose state it is.
struct StateOwner {
  const at::Tensor& parameter;
  /// Of all parameters of its group.
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

/// Where tensors of a saved state come from: that of this field, as the rule wants it; undefined
/// where there is none.
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

/// Null for a class that is not exactly one of them: what a derived one adds is known only to it.
const OptimizerKind* find_optimizer_kind(const torch::optim::Optimizer& optimizer);

}  // namespace accelerate::internal
