/// What a plan of tensor parallelism (config/tensor_parallel_plan.h) makes of a model's parameters.
///
/// Local. Threads: pure functions of their arguments.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/config/tensor_parallel_plan.h"
#include "accelerate/parallel/layout/placement.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace accelerate {

struct KwargsHandlers;
struct LayoutContext;
class ModelLayout;

/// The plan of a model: the Accelerator's for models of its class, else that for all, else the
/// model's own. Absent: there is none.
std::optional<TensorParallelPlan> find_plan(const torch::nn::Module& module,
                                            const KwargsHandlers& handlers);

/// A parameter with its rule.
struct PlannedParameter {
  std::string name;
  at::Tensor tensor;
  /// Whole without a rule of the plan. One of a tied parameter says what all layers that have it do
  /// with it.
  TensorRule rule = {};

  /// The dim that ranks cut; absent: all have the parameter whole.
  std::optional<int> cut_dim() const;
};

/// All parameters of a model, in its order, whether they are cut already or not.
/// Errors: c10::ValueError naming a pattern without a match and a name that is near; a tied
///         parameter that rules cut in two ways; and a module that is not divided, which are LSTM
///         and its kin, convolutions, MultiheadAttention and Bilinear, with what is.
std::vector<PlannedParameter> planned_parameters(const torch::nn::Module& module,
                                                 const TensorParallelPlan& plan);

/// How so many ranks cut a whole parameter; absent: not at all. A column layer with fewer groups of
/// features than ranks, as of keys or values, has each on several neighbours (Cut::copies), if its
/// outputs are not gathered and it is one weight.
/// Errors: c10::ValueError naming the parameter and what would do: features, blocks or groups that
///         the ranks do not divide evenly; several weights in one without blocks or groups, as its
///         name says; a tensor with more than two dims, or whose values something else keeps, as
///         quantised ones.
std::optional<Cut> cut_of(const PlannedParameter& parameter, int ranks);

/// A model's layout by its plan; null where tp has one rank or the plan cuts nothing.
/// A plan for sequence shards that the Accelerator has without tp is worth a warning.
/// Errors: the above; c10::ValueError for a model without a plan, for sequence shards of a plan
///         that cuts nothing, and for a parameter of which the rank has a part already, because
///         another model that has it was prepared before.
std::shared_ptr<const ModelLayout> tensor_parallel_layout(const LayoutContext& context);

}  // namespace accelerate
