#include "accelerate/operators/block.h"

#include <utility>

#include "accelerate/operators/operator_mode.h"

namespace accelerate {

std::shared_ptr<const Recomputation> RecomputationScope::recomputation_of(
    const torch::nn::Module& module) {
  RecomputationScope* const innermost = current();
  if (innermost == nullptr) return nullptr;
  const auto& recomputation = innermost->recomputation_;
  if (recomputation->modules && !recomputation->modules->contains(&module)) return nullptr;
  if (innermost->calls_ >= recomputation->first_calls.value_or(innermost->calls_ + 1)) {
    return nullptr;
  }
  ++innermost->calls_;
  return recomputation;
}

at::Tensor internal::block_input(const torch::nn::Module& module, at::Tensor input) {
  for (const auto& handler : current_operator_handlers()) {
    input = handler->block_input(module, std::move(input));
  }
  return input;
}

}  // namespace accelerate
