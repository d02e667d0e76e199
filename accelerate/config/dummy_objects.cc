#include "accelerate/config/dummy_objects.h"

#include <utility>

#include <c10/util/Exception.h>
#include <torch/optim/optimizer.h>

namespace accelerate {
namespace {

void check(const char* what, double value) {
  TORCH_CHECK_VALUE(value >= 0, "DummyOptim: ", what, " is ", value, ", less than 0");
}

}  // namespace

DummyOptim::DummyOptim(std::vector<at::Tensor> params, DummyOptimOptions options)
    : DummyOptim(std::vector<DummyParamGroup>{{.params = std::move(params)}}, std::move(options)) {}

DummyOptim::DummyOptim(std::vector<DummyParamGroup> param_groups, DummyOptimOptions options)
    : DummyOptimOptions(std::move(options)), groups(std::move(param_groups)) {
  check("lr", lr);
  check("weight_decay", weight_decay);
  for (const DummyParamGroup& group : groups) {
    check("a group's lr", group.lr.value_or(0));
    check("a group's weight_decay", group.weight_decay.value_or(0));
  }
}

double DummyScheduler::lr() const {
  if (const auto* const* dummy = std::get_if<const DummyOptim*>(&optimizer)) return (*dummy)->lr;
  return std::get<const torch::optim::Optimizer*>(optimizer)->defaults().get_lr();
}

}  // namespace accelerate
