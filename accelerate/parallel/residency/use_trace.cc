#include "accelerate/parallel/residency/use_trace.h"

#include <utility>

namespace accelerate {

void UseTrace::begin_step() {
  if (position_ > 0) {
    // Several forward passes to one backward pass end early in each step, at the same place.
    if (position_ < uses_.size() && std::exchange(early_end_, position_) != position_) {
      departed_ = true;
    }
    records_ = false;
    is_first_ = false;
  }
  position_ = 0;
}

bool UseTrace::end() {
  if (position_ == 0) return false;
  records_ = false;
  return std::exchange(is_first_, false);
}

bool UseTrace::record(int group) {
  const bool was_recording = std::exchange(records_, true);
  if (!is_first_) departed_ = true;
  uses_.resize(position_);
  uses_.push_back(group);
  ++position_;
  return was_recording;
}

void UseTrace::mark_compared() {
  departed_ = false;
  history_ = 0;
}

}  // namespace accelerate
