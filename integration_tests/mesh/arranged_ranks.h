/// Ranks along any axes together, also those products that an Accelerator refuses from a user: what
/// all engines stand on, as shares of the data, is tested with them. Along tp models stay whole,
/// unless the options say more.
#pragma once

#include <algorithm>
#include <utility>
#include <variant>

#include "accelerate/accelerate.h"
#include "accelerate/config/tensor_parallel_plan.h"
#include "accelerate/state/accelerator_state.h"

namespace accelerate {
namespace internal {

struct ArrangedRanks {
  static void make(const AcceleratorOptions& options, Runtime& runtime) {
    AcceleratorState::initialize(runtime, {.mixed_precision = options.mixed_precision,
                                           .parallelism_config = options.parallelism_config});
  }
};

}  // namespace internal

/// Arranges the ranks as the options' parallelism_config says. An Accelerator made of the result
/// finds them so. Collective.
inline AcceleratorOptions arranged(AcceleratorOptions options,
                                   Runtime& runtime = Runtime::current()) {
  internal::ArrangedRanks::make(options, runtime);
  options.parallelism_config.reset();
  const auto is_plan = [](const KwargsHandler& each) {
    return std::holds_alternative<TensorParallelPlan>(each);
  };
  if (std::ranges::none_of(options.kwargs_handlers, is_plan)) {
    options.kwargs_handlers.emplace_back(TensorParallelPlan());
  }
  return options;
}

}  // namespace accelerate
