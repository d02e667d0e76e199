#include "accelerate/parallel/residency/use_trace.h"

#include <algorithm>
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

std::optional<c10::ArrayRef<int>> UseTrace::until_reuse(int group) const {
  if (records_) return std::nullopt;
  const auto from = uses_.begin() + static_cast<std::ptrdiff_t>(position_ > 0 ? position_ - 1 : 0);
  const auto use = std::find(from, uses_.end(), group);
  if (use == uses_.end()) return std::nullopt;
  const auto reuse = std::find(use + 1, uses_.end(), group);
  if (reuse == uses_.end()) return std::nullopt;
  return c10::ArrayRef<int>(uses_).slice(use + 1 - uses_.begin(), reuse - use - 1);
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
