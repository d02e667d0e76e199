/// The optimizer that Megatron-LM's arguments describe, and the rates of its groups.
///
///     plugin.set_optimizer_type("AdamW", megatron_optimizer_facts(adam).defaults);
///     const MegatronOptimizer made = make_megatron_optimizer(*model, plugin);
///     set_megatron_rates(*made.optimizer, made.factors, schedule, samples);
///
/// Parameters are in up to four groups: with weight decay or without, and with the learning rate or
/// lr_mult times that. Biases and parameters with one dim have no decay, unless no_wd_decay_cond
/// says otherwise.
///
/// Errors:  c10::ValueError naming the argument.
/// Threads: that of the optimizer.
/// Source:  Megatron-LM, megatron/core/optimizer: its parameter groups. Its Adam is AdamW.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/config/megatron_lm_plugin.h"
#include "accelerate/megatron/preparation.h"
#include "accelerate/megatron/schedule.h"

namespace accelerate {

/// What the rates of a parameter group are times.
struct MegatronFactors {
  double lr = 1;
  double weight_decay = 1;

  bool operator==(const MegatronFactors&) const = default;
};

struct MegatronOptimizer {
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  /// Factors of each parameter group.
  std::vector<MegatronFactors> factors;
};

/// For the model's parameters that are trained. `plugin` is one with the arguments of
/// set_optimizer_type: AdamW for "adam", SGD for "sgd".
MegatronOptimizer make_megatron_optimizer(const torch::nn::Module& model,
                                          const MegatronLMPlugin& plugin);

/// Sets the rates for the step that follows so many samples.
/// \pre There are as many factors as the optimizer has groups.
void set_megatron_rates(torch::optim::Optimizer& optimizer,
                        const std::vector<MegatronFactors>& factors,
                        const MegatronSchedule& schedule, int64_t samples);

/// What set_optimizer_type needs to know of an Adam, an AdamW or an SGD.
MegatronOptimizerFacts megatron_optimizer_facts(const torch::optim::Optimizer& optimizer);

}  // namespace accelerate
