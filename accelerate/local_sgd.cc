#include "accelerate/local_sgd.h"

#include <exception>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "accelerate/base/access.h"
#include "accelerate/comm/operations.h"
#include "accelerate/modules/value_at_use.h"

namespace accelerate {
namespace {

bool is_supported(DistributedType type) {
  switch (type) {
    case DistributedType::kDeepSpeed:
    case DistributedType::kFsdp:
    case DistributedType::kXla:
    case DistributedType::kMegatronLm: return false;
    default: return true;
  }
}

}  // namespace

LocalSGD::LocalSGD(Accelerator& accelerator, std::shared_ptr<ModelState> model,
                   int64_t local_sgd_steps, bool enabled)
    : accelerator_(accelerator),
      model_(std::move(model)),
      local_sgd_steps_(local_sgd_steps),
      enabled_(enabled && accelerator.use_distributed()),
      exceptions_(std::uncaught_exceptions()) {
  TORCH_CHECK_VALUE(is_supported(accelerator.distributed_type()), "LocalSGD: ranks of a ",
                    to_string(accelerator.distributed_type()),
                    " job cannot train independently; only those of NO and MULTI_* can");
  TORCH_CHECK_VALUE(local_sgd_steps >= 1, "LocalSGD: local_sgd_steps must be at least 1, got ",
                    local_sgd_steps);
  if (!enabled_) return;
  internal::Access::to(accelerator).check_each_rank_has_a_share("LocalSGD");
  TORCH_CHECK_VALUE(!model_->is_divided(),
                    "LocalSGD: ranks with shards of a model cannot train independently");
  NoSyncScope::Counts counts;
  model_->add_no_sync_counts(counts);
  if (counts.empty()) return;
  no_sync_.emplace(std::move(counts));
  if (GradScaler* scaler = accelerator.scaler()) {
    scaling_group_ = scaler->group();
    scaler->set_group(nullptr);
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
  average_tensors(accelerator_.state().data_share().group, parameters);
}

}  // namespace accelerate
