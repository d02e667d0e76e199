// The backward pass of a training step: losses that are divided by micro-steps or by tokens, scaled
// in fp16, and passed to optimizers that step during the pass.
#include <algorithm>
#include <unordered_set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "absl/cleanup/cleanup.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/optim/lomo.h"
#include "accelerate/state/accelerator_state.h"
#include "accelerate/state/gradient_state.h"
#include "accelerate/step/training_state.h"
#include "accelerate/step/training_step.h"

namespace accelerate::internal {
namespace {

// The type of the numbers that gradients are multiplied by.
at::ScalarType factor_dtype(c10::Device device) {
  return device.is_mps() ? at::kFloat : at::kDouble;
}

}  // namespace

void TrainingStep::backward(const at::Tensor& loss, const BackwardOptions& options) {
  AccumulationWindow& window = gradients_.window();
  TORCH_CHECK_VALUE(!window.divides_by_tokens,
                    "backward() after backward_tokens() in the same accumulation window");
  window.divides_by_steps = window.steps > 0;
  int64_t steps = gradients_.num_steps();
  if (gradients_.sync_gradients() && window.steps > 0 && window.steps < steps &&
      gradients_.normalize_partial_window()) {
    if (!std::exchange(window.rescaled, true)) {
      multiply_gradients(
          at::scalar_tensor(static_cast<double>(steps) / window.steps, factor_dtype(at::kCPU)));
    }
    steps = window.steps;
  }
  run_backward(steps == 1 ? loss : loss.div(steps), options);
  step_after_backward();
}

at::Tensor TrainingStep::backward_tokens(const at::Tensor& loss_sum, int64_t n_tokens,
                                         const BackwardOptions& options) {
  AccumulationWindow& window = gradients_.window();
  TORCH_CHECK_VALUE(n_tokens >= 0, "backward_tokens: a loss cannot be over ", n_tokens, " tokens");
  TORCH_CHECK_VALUE(!gradients_.joining(),
                    "backward_tokens: inside join_uneven_inputs, ranks whose data has ended would "
                    "not count their tokens; use even batches, or zero tokens in padded batches");
  TORCH_CHECK_VALUE(!window.divides_by_steps,
                    "backward_tokens() after backward() in the same accumulation window");
  TORCH_CHECK_VALUE(!window.tokens_are_summed || window.steps == 1,
                    "backward_tokens: the window's tokens were summed already; a window of several "
                    "micro-steps has one loss in each");
  window.divides_by_tokens = window.steps > 0;
  window.tokens += n_tokens;
  if (!gradients_.sync_gradients()) {
    // fp16 needs a loss of the size of a mean. Where micro-steps are synchronised one by one, all
    // ranks must divide by the same number.
    if (window.token_unit == 0) {
      window.token_unit = gradients_.sync_each_batch() ? 1 : std::max<int64_t>(1, n_tokens);
    }
    run_backward(window.token_unit == 1 ? loss_sum : loss_sum.div(window.token_unit), options);
    return {};
  }
  const c10::Device device = state_.device();
  at::Tensor tokens =
      at::full({1}, std::exchange(window.tokens, 0), at::TensorOptions(device).dtype(at::kLong));
  // Ranks that compute the same tokens count them once, and averaging divides by the shares.
  const DataShare share = state_.roles(divided_axes()).tokens;
  if (share.group) tokens = reduce_tensor(share.group, tokens, Reduction::kSum);
  tokens = tokens.reshape({});
  const at::Tensor factor =
      at::reciprocal(tokens.clamp_min(1).to(factor_dtype(device))).mul_(share.count);
  if (window.token_unit != 0) multiply_gradients(factor.mul(window.token_unit));
  window.token_unit = 0;
  window.tokens_are_summed = window.steps > 0;
  run_backward(loss_sum.mul(factor.to(loss_sum.options())), options);
  step_after_backward();
  return tokens;
}

void TrainingStep::run_backward(const at::Tensor& loss, const BackwardOptions& options) {
  if (training_.step_in_backward && gradients_.sync_gradients()) {
    for_each_alive(training_.optimizers, [](const auto& optimizer) {
      if (optimizer->on_disk != nullptr) optimizer->on_disk->expect_step();
    });
  }
  auto run = [&](const at::Tensor& tensor) {
    if (!options.inputs) {
      return tensor.backward(options.gradient, options.retain_graph, options.create_graph);
    }
    tensor.backward(options.gradient, options.retain_graph, options.create_graph,
                    at::TensorList(*options.inputs));
  };
  if (state_.distributed_type() == DistributedType::kXla) {
    // The optimizers have to average the new gradients.
    for_each_alive(training_.optimizers,
                   [](const auto& optimizer) { optimizer->are_averaged = false; });
    gradients_.set_is_xla_gradients_synced(false);
  }
  if (training_.precision.scaler()) {
    training_.precision.scaler()->begin_backward();
    return run(scaler()->scale(loss));
  }
  if (!has_lomo_optimizer()) return run(loss);
  TORCH_CHECK_VALUE(!options.gradient.defined() && !options.retain_graph && !options.inputs &&
                        !options.create_graph,
                    "backward: an optimizer that steps during the backward pass takes none of "
                    "autograd's options");
  lomo_backward(loss, options.learning_rate);
}

void TrainingStep::step_after_backward() {
  if (!training_.step_in_backward) return;
  try {
    for (const auto& model : training_.models) model->check_reads();
  } catch (const c10::Error&) {
    // They are NaN, and the user's zero_grad has no effect.
    for_each_alive(training_.optimizers, [](const auto& prepared) {
      if (prepared->steps_in_backward) prepared->zero_grad(/*set_to_none=*/true);
    });
    throw;
  }
  if (!gradients_.sync_gradients()) return;
  // Those of the models that the loss was of; ranks have gradients of the same ones.
  std::vector<std::shared_ptr<SharedOptimizer>> optimizers;
  for_each_alive(training_.optimizers, [&](const auto& prepared) {
    if (prepared->steps_in_backward && prepared->has_gradients()) optimizers.push_back(prepared);
  });
  for (const auto& prepared : optimizers) step_by_engine(*prepared);
  for_each_alive(training_.schedulers, [&](const auto& scheduler) {
    if (!scheduler->steps_in_backward || scheduler->follows_skipped_step()) return;
    if (std::ranges::any_of(optimizers,
                            [&](const auto& each) { return scheduler->follows(*each); }))
      scheduler->step();
  });
}

void TrainingStep::step_by_engine(SharedOptimizer& prepared) {
  StepInBackward& step = *training_.step_in_backward;
  // Also after an error, since the user's zero_grad has no effect.
  const absl::Cleanup forget = [&prepared] { prepared.zero_grad(/*set_to_none=*/true); };
  prepared.settle_gradients(gradients_);
  const std::vector<GradientShards> trained = trained_of(prepared.parameters());
  step.norm = prepared.max_norm > 0
                  ? clip_sharded_grad_norm_(trained, prepared.max_norm, state_.device())
                  : get_sharded_total_norm(trained, state_.device());
  prepared.step(gradients_, /*closure=*/nullptr);
}

void TrainingStep::multiply_gradients(const at::Tensor& factor) {
  at::NoGradGuard no_grad;
  const auto& named = gradients_.window().models;
  std::unordered_set<const at::TensorImpl*> seen;
  auto multiply = [&](const at::Tensor& parameter) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (seen.insert(parameter.unsafeGetTensorImpl()).second && gradient.defined() &&
        !is_absent(gradient)) {
      gradient.mul_(factor.to(gradient.device()));
    }
  };
  for (const auto& model : training_.models) {
    const bool is_named = named.empty() || std::find(named.begin(), named.end(),
                                                     model->module().get()) != named.end();
    for (const TrainedParameter& each : model->trained()) {
      // A sharded parameter has gradients of its own while they are not synchronised.
      for (const at::Tensor& tensor : {each.parameter, each.trained}) {
        if (is_named) {
          multiply(tensor);
        } else {
          seen.insert(tensor.unsafeGetTensorImpl());
        }
      }
    }
  }
  for_each_alive(training_.optimizers, [&](const auto& prepared) {
    for (const torch::optim::OptimizerParamGroup& group : prepared->optimizer->param_groups()) {
      for (const at::Tensor& parameter : group.params()) multiply(parameter);
    }
  });
}

std::vector<optim::FusedBackwardOptimizer*> TrainingStep::lomo_optimizers() const {
  std::vector<optim::FusedBackwardOptimizer*> found;
  for_each_alive(training_.optimizers, [&](const auto& prepared) {
    auto* lomo = dynamic_cast<optim::FusedBackwardOptimizer*>(prepared->optimizer.get());
    if (lomo != nullptr) found.push_back(lomo);
  });
  return found;
}

bool TrainingStep::has_lomo_optimizer() const {
  return training_.has_lomo && !lomo_optimizers().empty();
}

void TrainingStep::lomo_backward(const at::Tensor& loss, std::optional<double> learning_rate) {
  const auto optimizers = lomo_optimizers();
  TORCH_CHECK_VALUE(!optimizers.empty(),
                    "lomo_backward: no prepared optimizer steps during the backward pass; was a "
                    "LOMO optimizer passed to prepare?");
  TORCH_CHECK_VALUE(optimizers.size() == 1, "lomo_backward: ", optimizers.size(),
                    " prepared optimizers step during the backward pass; there can be one only");
  for_each_alive(training_.optimizers, [&](const auto& prepared) {
    if (prepared->optimizer.get() == optimizers.front()) prepared->wait_for_readers();
  });
  optimizers.front()->fused_backward(loss, learning_rate);
}

}  // namespace accelerate::internal
