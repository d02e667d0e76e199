#include "accelerate/optim/lomo.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "accelerate/comm/operations.h"
#include "accelerate/optim/clip_grad.h"

namespace accelerate::optim {
namespace {

using torch::autograd::PostAccumulateGradHook;

// Calls a function when a parameter's gradient is complete, after the hook that was there before.
struct GradientHook : PostAccumulateGradHook {
  void operator()(const at::Tensor& parameter) override {
    if (previous != nullptr) (*previous)(parameter);
    at::NoGradGuard no_grad;
    std::lock_guard<std::mutex> lock(*mutex);
    at::Tensor changeable = parameter;
    if (changeable.grad().defined()) on_gradient(changeable);
  }

  std::unique_ptr<PostAccumulateGradHook> previous;
  std::mutex* mutex = nullptr;
  std::function<void(at::Tensor&)> on_gradient;
};

// Hooks on parameters for a scope.
class HookScope {
 public:
  HookScope() = default;
  ~HookScope() {
    for (size_t i = hooked_.size(); i-- > 0;) {
      std::unique_ptr<PostAccumulateGradHook>& slot =
          torch::autograd::impl::post_acc_grad_hooks(hooked_[i]);
      slot = std::move(static_cast<GradientHook&>(*slot).previous);
    }
  }
  HookScope(const HookScope&) = delete;
  HookScope& operator=(const HookScope&) = delete;

  void add(const at::Tensor& parameter, std::function<void(at::Tensor&)> on_gradient) {
    auto hook = std::make_unique<GradientHook>();
    hook->previous = std::move(torch::autograd::impl::post_acc_grad_hooks(parameter));
    hook->mutex = &mutex_;
    hook->on_gradient = std::move(on_gradient);
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::move(hook));
    hooked_.push_back(parameter);
  }

 private:
  std::mutex mutex_;
  std::vector<at::Tensor> hooked_;
};

void check_lr(double lr) {
  TORCH_CHECK_VALUE(std::isfinite(lr) && lr >= 0,
                    "the learning rate must be a finite number of at least 0, it is ", lr);
}

template <typename Options>
void check_common(const Options& options) {
  TORCH_CHECK_VALUE(options.lr() >= 0, "Invalid learning rate: ", options.lr());
  TORCH_CHECK_VALUE(options.weight_decay() >= 0,
                    "Invalid weight_decay value: ", options.weight_decay());
  TORCH_CHECK_VALUE(options.clip_grad_norm() >= 0,
                    "Invalid clip_grad_norm value: ", options.clip_grad_norm());
  TORCH_CHECK_VALUE(options.clip_grad_value() >= 0,
                    "Invalid clip_grad_value value: ", options.clip_grad_value());
}

at::Tensor rms(const at::Tensor& tensor) { return tensor.square().mean().sqrt_(); }

void blend(at::Tensor& average, const at::Tensor& now, double keep) {
  if (!average.defined()) average = at::zeros_like(now);
  average.mul_(keep).add_(now, 1 - keep);
}

// The gradient over the root of its second moment.
at::Tensor scaled(const at::Tensor& grad, AdaLomoParamState& state, double keep, double eps) {
  const at::Tensor square = grad.square().add_(eps);
  if (grad.dim() < 2) {
    blend(state.exp_avg_sq(), square, keep);
    return state.exp_avg_sq().rsqrt().mul_(grad);
  }
  at::Tensor& row = state.exp_avg_sq_row();
  at::Tensor& column = state.exp_avg_sq_col();
  blend(row, square.mean(-1), keep);
  blend(column, square.mean(-2), keep);
  const at::Tensor of_rows = row.div(row.mean(-1, /*keepdim=*/true)).rsqrt_().unsqueeze(-1);
  return of_rows.mul(column.rsqrt().unsqueeze(-2)).mul_(grad);
}

}  // namespace

void FusedBackwardOptimizer::run_backward(const at::Tensor& loss, bool retain_graph,
                                          const OnGradient& on_gradient) {
  TORCH_CHECK_VALUE(loss.defined(), "a backward pass needs a loss");
  HookScope hooks;
  for (size_t group = 0; group < param_groups_.size(); ++group) {
    for (const at::Tensor& parameter : param_groups_[group].params()) {
      if (!parameter.requires_grad()) continue;
      hooks.add(parameter, [&on_gradient, group](at::Tensor& each) { on_gradient(each, group); });
    }
  }
  torch::autograd::backward({loss}, {}, retain_graph);
}

// Taken from the parameter, and averaged over the group.
at::Tensor FusedBackwardOptimizer::reduced_gradient(const at::Tensor& parameter) const {
  at::Tensor grad = std::move(parameter.mutable_grad());
  parameter.mutable_grad().reset();
  TORCH_CHECK_VALUE(grad.layout() == at::kStrided, "the gradient of a parameter of shape ",
                    parameter.sizes(), " is sparse, which a fused backward pass does not support");
  if (group_ == nullptr || group_->getSize() == 1) return grad;
  return reduce_tensor(group_, grad, Reduction::kMean);
}

void FusedBackwardOptimizer::fused_backward(const at::Tensor& loss, std::optional<double> lr) {
  if (lr.has_value()) check_lr(*lr);
  for (const torch::optim::OptimizerParamGroup& group : param_groups_) {
    check_lr(group.options().get_lr());
  }
  const Clipping clip = clipping();
  TORCH_CHECK(clip.norm == 0 || clip_factor_.defined(),
              "clip_grad_norm is set: call grad_norm(loss) before fused_backward(loss, lr), each "
              "time");
  const at::Tensor factor = std::exchange(clip_factor_, at::Tensor());
  run_backward(loss, /*retain_graph=*/false, [&](at::Tensor& parameter, size_t group) {
    at::Tensor grad = reduced_gradient(parameter);
    if (clip.value > 0) grad.clamp_(-clip.value, clip.value);
    if (factor.defined()) {
      at::Tensor own = factor.to(grad.device());
      // Without dimensions it would be rounded to the gradient's 16 bits first, to 0 at worst.
      if (at::isReducedFloatingType(grad.scalar_type()) && grad.dim() > 0) own = own.view({1});
      grad.mul_(own);
    }
    const torch::optim::OptimizerOptions& options = param_groups_[group].options();
    update(parameter, std::move(grad), lr.value_or(options.get_lr()), options);
  });
}

at::Tensor FusedBackwardOptimizer::grad_norm(const at::Tensor& loss) {
  std::vector<at::Tensor> norms;
  const Clipping clip = clipping();
  run_backward(loss, /*retain_graph=*/true, [&](at::Tensor& parameter, size_t) {
    at::Tensor grad = reduced_gradient(parameter);
    if (clip.value > 0) grad.clamp_(-clip.value, clip.value);
    norms.push_back(accelerate::internal::norm_of_tensors(grad, 2));
  });
  at::NoGradGuard no_grad;
  at::Tensor total = at::scalar_tensor(0.0);
  if (!norms.empty()) {
    const c10::Device device = norms.front().device();
    for (at::Tensor& norm : norms) norm = norm.to(device);
    total = accelerate::internal::norm_of_tensors(at::stack(norms), 2);
  }
  if (clip.norm > 0) {
    clip_factor_ = total.add(1e-6).reciprocal_().mul_(clip.norm).clamp_max_(1.0);
  }
  return total;
}

at::Tensor FusedBackwardOptimizer::step(LossClosure closure) {
  TORCH_CHECK_VALUE(closure == nullptr,
                    "this optimizer takes its steps in fused_backward; step takes no closure");
  return {};
}

void FusedBackwardOptimizer::set_process_group(c10::intrusive_ptr<c10d::ProcessGroup> group) {
  group_ = std::move(group);
}

void LomoOptions::check() const { check_common(*this); }

FusedBackwardOptimizer::Clipping Lomo::clipping() const {
  const auto& options = static_cast<const LomoOptions&>(defaults());
  return {.norm = options.clip_grad_norm(), .value = options.clip_grad_value()};
}

void Lomo::update(at::Tensor& parameter, at::Tensor grad, double lr,
                  const torch::optim::OptimizerOptions& options) {
  const double weight_decay = static_cast<const LomoOptions&>(options).weight_decay();
  if (weight_decay != 0) parameter.mul_(1 - lr * weight_decay);
  parameter.add_(grad, -lr);
}

void AdaLomoOptions::check() const {
  check_common(*this);
  TORCH_CHECK_VALUE(clip_threshold() > 0, "Invalid clip_threshold value: ", clip_threshold());
  TORCH_CHECK_VALUE(decay_rate() <= 0, "Invalid decay_rate value: ", decay_rate());
}

FusedBackwardOptimizer::Clipping AdaLomo::clipping() const {
  const auto& options = static_cast<const AdaLomoOptions&>(defaults());
  return {.norm = options.clip_grad_norm(), .value = options.clip_grad_value()};
}

void AdaLomo::update(at::Tensor& parameter, at::Tensor grad, double lr,
                     const torch::optim::OptimizerOptions& base_options) {
  if (parameter.numel() == 0) return;
  const auto& options = static_cast<const AdaLomoOptions&>(base_options);
  auto& state = internal::state_of<AdaLomoParamState>(*this, parameter);
  state.step(state.step() + 1);
  const double keep = 1 - std::pow(static_cast<double>(state.step()), options.decay_rate());
  const auto [eps_square, eps_scale] = options.eps();
  const bool is_double = parameter.scalar_type() == at::kDouble;
  const at::ScalarType wide = is_double ? at::kDouble : at::kFloat;
  at::Tensor change = scaled(grad.to(wide), state, keep, eps_square);
  change.div_(rms(change).div_(options.clip_threshold()).clamp_min_(1.0));
  const at::Tensor value = parameter.to(wide);
  // Parts of the step stay on the device.
  const at::Tensor rate = rms(value).clamp_min_(eps_scale).mul_(lr);
  change.mul_(rate);
  if (options.weight_decay() != 0) change.add_(value * rate, options.weight_decay());
  parameter.copy_(value - change);
}

}  // namespace accelerate::optim
