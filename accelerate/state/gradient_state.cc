#include "accelerate/state/gradient_state.h"

#include <algorithm>

#include "absl/log/absl_check.h"

namespace accelerate {

GradientState::~GradientState() {
  for (LoaderScope* loader : loaders_) loader->state_ = nullptr;
}

void GradientState::set_num_steps(int64_t num_steps) {
  ABSL_CHECK_GE(num_steps, 1);
  num_steps_ = num_steps;
}

bool GradientState::end_of_dataloader() const {
  return !loaders_.empty() && loaders_.back()->end_of_dataloader_;
}

int64_t GradientState::remainder() const {
  return loaders_.empty() ? kUnknownRemainder : loaders_.back()->remainder_;
}

const BatchRound* GradientState::round() const {
  return loaders_.empty() ? nullptr : &loaders_.back()->round_;
}

GradientState::LoaderScope::LoaderScope(GradientState& state, int64_t remainder)
    : state_(&state), remainder_(remainder) {
  state.loaders_.push_back(this);
}

GradientState::LoaderScope::~LoaderScope() {
  if (state_ == nullptr) return;
  std::vector<LoaderScope*>& loaders = state_->loaders_;
  auto found = std::find(loaders.begin(), loaders.end(), this);
  ABSL_CHECK(found != loaders.end());
  loaders.erase(found);
}

}  // namespace accelerate
