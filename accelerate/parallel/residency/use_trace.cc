#include "accelerate/parallel/residency/use_trace.h"

#include <utility>

namespace accelerate {

void UseTrace::begin_step() {
  if (position_ > 0) records_ = false;
  position_ = 0;
}

bool UseTrace::end() {
  if (position_ == 0) return false;
  return std::exchange(records_, false);
}

bool UseTrace::record(int group) {
  const bool was_recording = std::exchange(records_, true);
  uses_.resize(position_);
  uses_.push_back(group);
  ++position_;
  return was_recording;
}

}  // namespace accelerate
