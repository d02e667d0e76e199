#include "accelerate/operators/block.h"

#include <utility>

#include "accelerate/operators/operator_mode.h"

namespace accelerate {
namespace {

thread_local RecomputationScope* innermost = nullptr;

}  // namespace

RecomputationScope::RecomputationScope(std::shared_ptr<const Recomputation> recomputation)
    : recomputation_(std::move(recomputation)), outer_(innermost) {
  innermost = this;
}

RecomputationScope::~RecomputationScope() { innermost = outer_; }

std::shared_ptr<const Recomputation> RecomputationScope::recomputation_of(
    const torch::nn::Module& module) {
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
