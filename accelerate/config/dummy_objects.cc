#include "accelerate/config/dummy_objects.h"

#include <utility>

#include <c10/util/Exception.h>
#include <torch/optim/optimizer.h>

namespace accelerate {
namespace {

void check(const std::vector<DummyParamGroup>& groups, const DummyOptimOptions& options) {
  TORCH_CHECK_VALUE(options.lr >= 0, "DummyOptim: lr is ", options.lr, ", less than 0");
  TORCH_CHECK_VALUE(options.weight_decay >= 0, "DummyOptim: weight_decay is ", options.weight_decay,
                    ", less than 0");
  for (const DummyParamGroup& group : groups) {
    TORCH_CHECK_VALUE(group.lr.value_or(0) >= 0, "DummyOptim: a group's lr is ", *group.lr,
                      ", less than 0");
    TORCH_CHECK_VALUE(group.weight_decay.value_or(0) >= 0, "DummyOptim: a group's weight_decay is ",
                      *group.weight_decay, ", less than 0");
  }
}

}  // namespace

DummyOptim::DummyOptim(std::vector<at::Tensor> params, DummyOptimOptions options)
    : DummyOptim(std::vector<DummyParamGroup>{{.params = std::move(params)}}, std::move(options)) {}

DummyOptim::DummyOptim(std::vector<DummyParamGroup> param_groups, DummyOptimOptions options)
    : groups(std::move(param_groups)),
      lr(options.lr),
      weight_decay(options.weight_decay),
      kwargs(std::move(options.kwargs)) {
  check(groups, options);
}

DummyScheduler::DummyScheduler(const DummyOptim& optimizer, DummySchedulerOptions options)
    : optimizer(&optimizer),
      total_num_steps(options.total_num_steps),
      warmup_num_steps(options.warmup_num_steps),
      lr_scheduler_callable(std::move(options.lr_scheduler_callable)),
      kwargs(std::move(options.kwargs)) {}

DummyScheduler::DummyScheduler(const torch::optim::Optimizer& optimizer,
                               DummySchedulerOptions options)
    : optimizer(&optimizer),
      total_num_steps(options.total_num_steps),
      warmup_num_steps(options.warmup_num_steps),
      lr_scheduler_callable(std::move(options.lr_scheduler_callable)),
      kwargs(std::move(options.kwargs)) {}

double DummyScheduler::lr() const {
  if (const auto* const* dummy = std::get_if<const DummyOptim*>(&optimizer)) return (*dummy)->lr;
  return std::get<const torch::optim::Optimizer*>(optimizer)->defaults().get_lr();
}

}  // namespace accelerate
