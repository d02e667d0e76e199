#include "accelerate/dispatch/dispatch_technique.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {

DispatchTechnique::DispatchTechnique(const torch::nn::Module& module,
                                     std::vector<std::shared_ptr<DispatchedModel>> models)
    : models_(std::move(models)) {
  if (models_.front()->module().get() == &module) outputs_ = models_.front()->main_device();
  const auto home_of = [&](const at::Tensor& parameter) {
    for (const auto& model : models_) {
      const auto* const offloaded = model->find_offloaded(parameter);
      if (offloaded == nullptr || !offloaded->home.defined()) continue;
      // Scopes that write back are the same for all parameters that have a home: there are none.
      if (writers_ == nullptr) writers_ = model->residency()->writers();
      return offloaded->home;
    }
    return at::Tensor();
  };
  for (const auto& item : module.named_parameters()) {
    const at::Tensor home = home_of(item.value());
    trained_.push_back({item.key(), item.value(), home.defined() ? home : item.value()});
  }
  if (writers_ == nullptr) return;
  Runtime& runtime = Runtime::current();
  const int rank = runtime.topology().rank;
  only_rank_ =
      runtime.new_group({.ranks = {rank}, .name = absl::StrCat("dispatched model of rank ", rank)});
}

void DispatchTechnique::forward(ForwardPass& pass) { proceed_within(pass, 0); }

void DispatchTechnique::proceed_within(ForwardPass& pass, size_t next) {
  if (next < models_.size()) {
    DispatchedModel::Pass scope(*models_[next]);
    proceed_within(pass, next + 1);
    if (std::ranges::none_of(pass.outputs(), [](const at::Tensor& output) {
          return output.defined() && output.requires_grad();
        })) {
      scope.expect_no_backward();
    }
    return;
  }
  pass.proceed();
  if (!outputs_) return;
  std::vector<at::Tensor> outputs = pass.outputs();
  for (at::Tensor& output : outputs) {
    if (output.defined()) output = output.to(*outputs_);
  }
  pass.set_outputs(std::move(outputs));
}

}  // namespace accelerate
