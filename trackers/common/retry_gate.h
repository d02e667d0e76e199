/// When a service that was away may be asked again: later each time, and not by all at once.
///
///   if (!gate.is_open(now)) return;  // what is to be sent waits
///   try { send(); gate.succeeded(); } catch (const Away&) { gate.failed(now); throw; }
///
/// Nobody sleeps for it. The n-th failure in a row closes it for `first` times 2^(n-1), at most
/// `longest`, of which a random part, up to a half, is taken off.
/// Threads: one.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace accelerate::trackers {

struct RetryGateOptions {
  absl::Duration first = absl::Seconds(1);
  absl::Duration longest = absl::Minutes(1);
  /// What a service may ask for at most.
  absl::Duration longest_asked_for = absl::Hours(1);
};

class RetryGate {
 public:
  explicit RetryGate(uint64_t random_bits, const RetryGateOptions& options = {});

  bool is_open(absl::Time now) const { return now >= next_; }
  /// When it opens; InfinitePast where it is open.
  absl::Time next() const { return next_; }

  /// `retry_after`: what the service asked for, which counts where it is longer.
  void failed(absl::Time now, std::optional<absl::Duration> retry_after = std::nullopt);
  void succeeded();
  /// Opens it as after the first failure; what the service asked for still counts.
  void hurry();

 private:
  const RetryGateOptions options_;
  uint64_t random_state_;
  int failures_ = 0;  // in a row
  absl::Time asked_for_ = absl::InfinitePast();
  absl::Time next_ = absl::InfinitePast();
};

}  // namespace accelerate::trackers
