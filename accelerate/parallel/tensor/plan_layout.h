/// What a plan of tensor parallelism (config/tensor_parallel_plan.h) makes of a model's parameters.
///
/// Local. Threads: pure functions of their arguments.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/config/tensor_parallel_plan.h"
#include "accelerate/parallel/layout/placement.h"

namespace accelerate {

struct KwargsHandlers;
struct LayoutContext;
class ModelLayout;

/// The plan of a model: the Accelerator's plan for the model's class, else its plan for all models,
/// else the model's own; absent without any.
std::optional<TensorParallelPlan> find_plan(const torch::nn::Module& module,
                                            const KwargsHandlers& handlers);

/// A parameter with its rule.
struct PlannedParameter {
  std::string name;
  at::Tensor tensor;
  /// kReplicate without a rule of the plan. Names of one tied tensor have one rule.
  TensorRule rule = {};

  /// The dim that ranks cut; absent: all have the parameter whole.
  std::optional<int> cut_dim() const;
};

/// All parameters of a model, in its order, whether they are cut already or not.
/// Errors: c10::ValueError naming a pattern without a match and a name that is near; a rule with an
///         option that has no meaning beside its style; a tied parameter that rules cut in two
///         ways; and a module that is not divided, which are LSTM and its kin, convolutions,
///         MultiheadAttention and Bilinear, with what is.
std::vector<PlannedParameter> planned_parameters(const torch::nn::Module& module,
                                                 const TensorParallelPlan& plan);

/// How so many ranks cut a whole parameter; absent: not at all. If a column layer, such as one of
/// keys or values, has fewer groups of features than ranks, neighbouring ranks have the same group
/// (Cut::copies), unless its output is gathered or it is several weights in one.
/// Errors: c10::ValueError naming the parameter and the nearest thing that works: for features,
///         blocks or groups that the ranks do not divide evenly; for several weights in one, as the
///         name says, without blocks or groups; for blocks of a table of words, of gathered outputs
///         or of split inputs; for a tensor with more than two dims; for quantised or offloaded
///         values.
std::optional<Cut> cut_of(const PlannedParameter& parameter, int ranks);

/// A model's layout by its plan; null where tp has one rank or the plan cuts nothing.
/// Warns if the Accelerator has a plan with sequence shards and tp has one rank.
/// Errors: those of both functions above; c10::ValueError for a model without a plan, for a plan
///         with sequence shards that cuts nothing, and for a parameter of which the rank has a part
///         already, because another model with this parameter was prepared before.
std::shared_ptr<const ModelLayout> tensor_parallel_layout(const LayoutContext& context);

}  // namespace accelerate
