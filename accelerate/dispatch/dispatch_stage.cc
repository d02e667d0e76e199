#include "accelerate/dispatch/dispatch_stage.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {

DispatchStage::DispatchStage(std::shared_ptr<DispatchedModel> model) : model_(std::move(model)) {
  bool has_homes = false;
  for (const auto& item : model_->module()->named_parameters()) {
    const auto* const offloaded = model_->find_offloaded(item.value());
    const bool has_home = offloaded != nullptr && offloaded->home.defined();
    has_homes |= has_home;
    trained_.push_back({item.key(), item.value(), has_home ? offloaded->home : item.value()});
  }
  if (!has_homes) return;
  Runtime& runtime = Runtime::current();
  const int rank = runtime.topology().rank;
  only_rank_ =
      runtime.new_group({.ranks = {rank}, .name = absl::StrCat("dispatched model of rank ", rank)});
}

void DispatchStage::forward(ForwardPass& pass) {
  DispatchedModel::Pass scope(*model_);
  pass.proceed();
  std::vector<at::Tensor> outputs = pass.outputs();
  if (std::ranges::none_of(outputs, [](const at::Tensor& output) {
        return output.defined() && output.requires_grad();
      })) {
    scope.expect_no_backward();
  }
  for (at::Tensor& output : outputs) {
    if (output.defined()) output = output.to(model_->main_device());
  }
  pass.set_outputs(std::move(outputs));
}

}  // namespace accelerate
