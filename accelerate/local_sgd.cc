#include "accelerate/local_sgd.h"

#include <exception>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/access.h"
#include "accelerate/comm/operations.h"
#include "accelerate/mesh/axis_set.h"
#include "accelerate/mesh/roles.h"
#include "accelerate/modules/value_at_use.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/parallel/replicated/ddp.h"

namespace accelerate {
namespace {

// The ranks with the same parts of the model and other batches; null for one.
const ProcessGroupPtr& replicas_of(const ModelState& model) {
  return model.placements().roles->tokens.group;
}

// Whether all of those ranks have the same parts, which are all that optimizers train.
void check_has_replicas(const ModelState& model) {
  const ModelPlacements& placements = model.placements();
  const ModelLayout& layout = *placements.layout;
  const AxisSet sequences =
      layout.mesh().several(layout.divides() & AxisSet{MeshAxis::kCp, MeshAxis::kSp});
  TORCH_CHECK_VALUE(sequences.empty(), "LocalSGD: ranks along ", sequences.to_string(),
                    " compute attention of the same sequences together, rank ", placements.rank,
                    " among them, and cannot train independently; set their number to 1");
  for (const TensorPlacement& each : layout.placements()) {
    const AxisSet axes = layout.mesh().several(each.cut_axes() & AxisSet{MeshAxis::kDp});
    TORCH_CHECK_VALUE(axes.empty(), "LocalSGD: parameter \"", each.name, "\" is cut along ",
                      axes.to_string(), ", and rank ", placements.rank,
                      " has a part of it; ranks with other batches cannot train independently "
                      "unless they have the same parts");
  }
  TORCH_CHECK_VALUE(!model.trains_other_tensors(), "LocalSGD: what rank ", placements.rank,
                    " trains is in place of parameters, and ranks cannot train independently");
}

}  // namespace

LocalSGD::LocalSGD(Accelerator& accelerator, std::shared_ptr<ModelState> model,
                   int64_t local_sgd_steps, bool enabled)
    : accelerator_(accelerator),
      model_(std::move(model)),
      local_sgd_steps_(local_sgd_steps),
      enabled_(enabled && replicas_of(*model_) != nullptr),
      exceptions_(std::uncaught_exceptions()) {
  const absl::string_view type = to_string(accelerator.distributed_type());
  TORCH_CHECK_VALUE(type == "NO" || absl::StartsWith(type, "MULTI_"), "LocalSGD: ranks of a ", type,
                    " job cannot train independently; only those of NO and MULTI_* can");
  TORCH_CHECK_VALUE(local_sgd_steps >= 1, "LocalSGD: local_sgd_steps must be at least 1, got ",
                    local_sgd_steps);
  if (!enabled_) return;
  check_has_replicas(*model_);
  // Ranks with other parts of the model go on to sum partial gradients.
  const auto* const replicated = model_->find_technique<DistributedDataParallel>();
  if (replicated == nullptr) return;
  no_sync_.emplace(NoSyncScope::Counts{replicated->no_sync_count()});
  if (GradScaler* scaler = accelerator.scaler()) {
    scaling_group_ = scaler->group();
    // They skip steps together.
    scaler->set_group(model_->placements().norm);
  }
}

LocalSGD::~LocalSGD() noexcept(false) {
  if (!enabled_) return;
  if (scaling_group_ != nullptr) accelerator_.scaler()->set_group(scaling_group_);
  if (std::uncaught_exceptions() != exceptions_) return;
  average();
  internal::Access::to(accelerator_).broadcast_training_state(/*source=*/0, {model_.get()});
}

void LocalSGD::step() {
  ++steps_;
  if (enabled_ && steps_ % local_sgd_steps_ == 0) average();
}

void LocalSGD::average() const {
  accelerator_.wait_for_everyone();
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& parameter : model_->module()->parameters()) {
    // A quantised weight is the same on all ranks, and averages of its values would be others.
    const ValueMaker* const maker = find_maker(parameter);
    if (maker != nullptr && !maker->keeps_elements()) continue;
    if (parameter.is_floating_point() || parameter.is_complex()) parameters.push_back(parameter);
  }
  average_tensors(replicas_of(*model_), parameters);
}

}  // namespace accelerate
