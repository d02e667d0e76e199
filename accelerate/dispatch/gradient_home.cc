#include "accelerate/dispatch/gradient_home.h"

#include <memory>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace accelerate::internal {
namespace {

using Hook = torch::autograd::PostAccumulateGradHook;

class GradientHook final : public Hook {
 public:
  // `first`: the parameter's own hook; may be null.
  GradientHook(std::string name, at::Tensor home, std::unique_ptr<Hook> first)
      : name_(std::move(name)), home_(std::move(home)), first_(std::move(first)) {}

  void operator()(const at::Tensor& parameter) override {
    if (first_ != nullptr) (*first_)(parameter);
    const at::NoGradGuard no_grad;
    const at::Tensor gradient = parameter.grad();
    parameter.mutable_grad() = at::Tensor();
    TORCH_CHECK_VALUE(home_.defined(), "the backward pass has made a gradient of parameter \"",
                      name_,
                      "\", whose values are in a file: a model is not trained there. Let it not "
                      "require gradients, put it on \"cpu\" in the device map, or train with "
                      "ZeRO's offload (accelerate/docs/deepspeed.md)");
    if (!gradient.defined()) return;
    at::Tensor& sum = home_.mutable_grad();
    if (sum.defined()) {
      sum.add_(gradient.to(at::kCPU));
    } else {
      sum = gradient.to(at::kCPU);
    }
  }

  std::unique_ptr<Hook> take_first() { return std::move(first_); }

 private:
  const std::string name_;
  const at::Tensor home_;
  std::unique_ptr<Hook> first_;
};

}  // namespace

void set_gradient_home(const at::Tensor& parameter, std::string name, at::Tensor home) {
  auto first = std::move(torch::autograd::impl::post_acc_grad_hooks(parameter));
  torch::autograd::impl::set_post_acc_grad_hooks(
      parameter,
      std::make_unique<GradientHook>(std::move(name), std::move(home), std::move(first)));
}

void end_gradient_home(const at::Tensor& parameter) {
  auto hook = std::move(torch::autograd::impl::post_acc_grad_hooks(parameter));
  if (auto* own = dynamic_cast<GradientHook*>(hook.get())) hook = own->take_first();
  torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::move(hook));
}

}  // namespace accelerate::internal
