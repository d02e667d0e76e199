#include "trackers/common/retry_gate.h"

#include <algorithm>

#include "trackers/common/numbers.h"

namespace accelerate::trackers {

RetryGate::RetryGate(uint64_t random_bits, const RetryGateOptions& options)
    : options_(options), random_state_(random_bits) {}

void RetryGate::failed(absl::Time now, std::optional<absl::Duration> retry_after) {
  // Past 2^30 times, `longest` holds anyway.
  const absl::Duration delay =
      std::min(options_.longest, options_.first * (int64_t{1} << std::min(failures_, 30)));
  ++failures_;
  const double fraction = static_cast<double>(next_random(random_state_) >> 11) / (1LL << 53);
  if (retry_after) {
    asked_for_ = std::max(asked_for_, now + std::min(*retry_after, options_.longest_asked_for));
  }
  next_ = std::max(now + delay * (1 - fraction / 2), asked_for_);
}

void RetryGate::succeeded() {
  failures_ = 0;
  asked_for_ = next_ = absl::InfinitePast();
}

void RetryGate::hurry() {
  failures_ = 0;
  next_ = asked_for_;
}

}  // namespace accelerate::trackers
