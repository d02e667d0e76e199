// What the configuration of a job's deepspeed_plugin makes of what is prepared.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "accelerate/config/deepspeed_auto.h"
#include "accelerate/config/deepspeed_plugin.h"
#include "accelerate/precision/job_precision.h"
#include "accelerate/state/accelerator_state.h"
#include "accelerate/state/gradient_state.h"
#include "accelerate/step/training_state.h"
#include "accelerate/step/training_step.h"
#include "accelerate/step/zero_division.h"
#include "accelerate/step/zero_engine.h"

namespace accelerate::internal {
namespace {

// Models of several plugins are divided each by its own configuration, but one scaler scales all
// losses, and one count of micro-steps says where a step ends.
void check_beside(const ZeroConfig& earlier, int64_t earlier_steps, const ZeroConfig& zero,
                  int64_t steps) {
  const char* what = nullptr;
  if (!(earlier.fp16 == zero.fp16)) what = "fp16";
  if (earlier.dtype() != zero.dtype()) what = "precision";
  if (earlier_steps != steps) what = "gradient_accumulation_steps";
  TORCH_CHECK_VALUE(what == nullptr, "prepare: the selected deepspeed_plugin has another ", what,
                    " than the one of the models that were prepared before, which share it in one "
                    "job; let them agree, or call free_memory() first");
}

}  // namespace

void TrainingStep::configure_zero(const PreparedTogether& together, bool split_batches) {
  DeepSpeedPlugin* const plugin = state_.deepspeed_plugin();
  TORCH_CHECK_VALUE(plugin != nullptr || (together.dummy_optimizer == nullptr &&
                                          together.dummy_scheduler == nullptr),
                    "prepare: DummyOptim and DummyScheduler stand for what the configuration of a "
                    "deepspeed_plugin has, and this job has none");
  if (plugin == nullptr) return;
  const DataShare share = state_.data_share();
  DeepSpeedFacts facts{.num_processes = state_.num_processes(),
                       .ranks_per_share = state_.num_processes() / share.count,
                       .split_batches = split_batches,
                       .gradient_accumulation_steps = gradients_.num_steps(),
                       .batch_sizes = together.batch_sizes,
                       .has_model = !together.modules.empty(),
                       .has_optimizer = !together.optimizers.empty(),
                       .has_scheduler = together.has_scheduler,
                       .dummy_optimizer = together.dummy_optimizer,
                       .dummy_scheduler = together.dummy_scheduler};
  for (const torch::nn::Module* module : together.modules) {
    const std::vector<int64_t> sizes = hidden_sizes_of(*plugin, *module, state_.runtime().files());
    facts.hidden_sizes.insert(facts.hidden_sizes.end(), sizes.begin(), sizes.end());
  }
  // What fails changes nothing.
  DeepSpeedPlugin completed = *plugin;
  const DeepSpeedCompletion completion = complete(completed, facts);
  const auto take = [&] {
    *plugin = std::move(completed);
    if (!state_.is_main_process()) return;
    for (const std::string& note : completion.notes) TORCH_WARN(note);
  };
  // The engine clips and makes the steps of optimizers that are prepared from now on.
  const auto begin_training = [&](const ZeroConfig& zero) {
    if (!facts.has_optimizer && facts.dummy_optimizer == nullptr) return;
    zero_engine().set_steps({.max_norm = zero.gradient_clipping, .elements = zero.sub_group_size});
  };
  if (!facts.has_model) {
    TORCH_CHECK_VALUE(!facts.has_optimizer || training_.division != nullptr,
                      "prepare: with a deepspeed_plugin an optimizer is prepared together with its "
                      "model, or after it: the configuration says how its steps are made");
    if (training_.division != nullptr) begin_training(training_.division->config());
    return take();
  }
  ZeroConfig zero = zero_config(completed.deepspeed_config());
  for (const torch::nn::Module* module : together.modules) {
    for (const std::string& name :
         completed.set_moe_leaf_modules(*module, state_.runtime().environment())) {
      const bool is_there = std::ranges::count(zero.leaf_module_classes, name) > 0;
      if (!is_there) zero.leaf_module_classes.push_back(name);
    }
  }
  if (!training_.models.empty() && training_.division != nullptr) {
    check_beside(training_.division->config(), gradients_.num_steps(), zero,
                 completion.gradient_accumulation_steps);
  }
  // Before anything is divided; the optimizer is made afterwards.
  TORCH_CHECK_VALUE(together.dummy_optimizer == nullptr || !zero.optimizer || zero.stage == 0 ||
                        zero.optimizer->type != ZeroOptimizerType::kLamb,
                    "prepare: the configuration's optimizer is Lamb, which needs whole parameters, "
                    "but stage ",
                    zero.stage, " divides their optimizer; use stage 0 or another optimizer");
  const JobPrecision& precision = training_.precision;
  const bool is_msamp = precision.fp8_backend() == FP8BackendType::kMsamp;
  TORCH_CHECK_VALUE(
      !is_msamp || zero.stage < 3,
      "prepare: MS-AMP rounds gradients and moments of parameters that are whole on "
      "a rank, but stage 3 divides them; use stage 0, 1 or 2, or the recipe AO or TE");
  TORCH_CHECK_VALUE(
      !zero.msamp.enabled ||
          (is_msamp && precision.packs_moments() == (zero.msamp.opt_level == "O2")),
      "prepare: the configuration of the deepspeed_plugin has msamp.enabled with opt_level ",
      zero.msamp.opt_level, ", which the Accelerator did not find there when it was made");
  TORCH_CHECK_VALUE(
      zero.offload_optimizer.ratio == 1 || (zero.offload_optimizer.device != OffloadDevice::kNvme &&
                                            zero.offload_param.device != OffloadDevice::kNvme),
      "zero_optimization.offload_optimizer.ratio=", zero.offload_optimizer.ratio,
      ": with \"nvme\" this version keeps all of the optimizer's state off the "
      "device, or none; use the device \"cpu\"");
  take();
  if (training_.division == nullptr) training_.division = std::make_shared<ZeroDivision>(state_);
  training_.division->set_config(zero);
  training_.precision.apply_zero_config(zero, state_.group());
  gradients_.set_num_steps(completion.gradient_accumulation_steps);
  begin_training(zero);
}

}  // namespace accelerate::internal
