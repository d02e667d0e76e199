#include "accelerate/operators/block.h"

namespace accelerate {
namespace {

thread_local RecomputationScope* innermost = nullptr;

}  // namespace

RecomputationScope::RecomputationScope(const Modules* modules)
    : modules_(modules), outer_(innermost) {
  innermost = this;
}

RecomputationScope::~RecomputationScope() { innermost = outer_; }

bool RecomputationScope::takes(const torch::nn::Module& module) {
  if (innermost == nullptr) return false;
  if (innermost->modules_ != nullptr && !innermost->modules_->contains(&module)) return false;
  ++innermost->calls_;
  return true;
}

}  // namespace accelerate
