// The backward pass of a training step: losses that are divided by micro-steps or by tokens, and
// passed to the job's engine.
#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "accelerate/comm/operations.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/mesh/device_mesh.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/state/accelerator_state.h"
#include "accelerate/state/gradient_state.h"
#include "accelerate/step/lomo_engine.h"
#include "accelerate/step/step_engine.h"
#include "accelerate/step/training_state.h"
#include "accelerate/step/training_step.h"

namespace accelerate::internal {
namespace {

// The type of the numbers that gradients are multiplied by.
at::ScalarType factor_dtype(c10::Device device) {
  return device.is_mps() ? at::kFloat : at::kDouble;
}

// Attention gives ranks with parts of the same sequences gradients of each other's losses, which
// have to be divided by one number. Collective over these ranks.
int64_t largest_of(const ProcessGroupPtr& group, int64_t number) {
  if (group == nullptr) return number;
  return reduce_tensor(group, at::full({1}, number, at::kLong), Reduction::kMax).item<int64_t>();
}

}  // namespace

void TrainingStep::check_backward_is_whole(const char* caller) const {
  const std::optional<ParallelismConfig>& config = state_.parallelism_config();
  TORCH_CHECK_VALUE(!config || !config->pp_enabled(), caller, ": rank ", state_.process_index(),
                    " has stages of a pipeline, so that a loss of its own is not the model's; use "
                    "train_batch(), which runs both passes of all stages");
}

int64_t TrainingStep::steps_of_window() {
  AccumulationWindow& window = gradients_.window();
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
  return steps;
}

void TrainingStep::backward(const at::Tensor& loss, const BackwardOptions& options) {
  check_backward_is_whole("backward");
  TORCH_CHECK_VALUE(!gradients_.window().divides_by_tokens,
                    "backward() after backward_tokens() in the same accumulation window");
  const int64_t steps = steps_of_window();
  StepEngine& engine = this->engine();
  engine.backward(steps == 1 ? loss : loss.div(steps), options);
  engine.end_backward();
}

at::Tensor TrainingStep::backward_tokens(const at::Tensor& loss_sum, int64_t n_tokens,
                                         const BackwardOptions& options) {
  check_backward_is_whole("backward_tokens");
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
      window.token_unit = largest_of(state_.sequence_group(), window.token_unit);
    }
    engine().backward(window.token_unit == 1 ? loss_sum : loss_sum.div(window.token_unit), options);
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
  StepEngine& engine = this->engine();
  engine.backward(loss_sum.mul(factor.to(loss_sum.options())), options);
  engine.end_backward();
  return tokens;
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

bool TrainingStep::has_lomo_optimizer() const {
  const LomoEngine* engine = lomo();
  return engine != nullptr && engine->has_optimizer();
}

void TrainingStep::lomo_backward(const at::Tensor& loss, std::optional<double> learning_rate) {
  if (training_.engine == nullptr) engine();
  lomo()->fused_backward(loss, learning_rate);
}

void TrainingStep::engine_backward(const at::Tensor& loss, bool sync_gradients,
                                   const BackwardOptions& options) {
  gradients_.set_sync_gradients(sync_gradients);
  if (sync_gradients) {
    for (const auto& model : training_.models) model->trigger_sync_in_backward();
  }
  backward(loss, options);
}

at::Tensor TrainingStep::engine_norm() const {
  return training_.engine != nullptr ? training_.engine->norm() : at::Tensor();
}

}  // namespace accelerate::internal
