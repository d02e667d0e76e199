/// Decides when to call a service again after failures: exponential back-off with jitter.
///
///   if (!gate.is_open(now)) return;  // retry later
///   try { send(); gate.succeeded(); } catch (const Away&) { gate.failed(now); throw; }
///
/// It never sleeps. The n-th failure in a row closes it for `first` times 2^(n-1), at most
/// `longest`, minus a random part of up to a half. Threads: one.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace accelerate::trackers {

struct RetryGateOptions {
  absl::Duration first = absl::Seconds(1);
  absl::Duration longest = absl::Minutes(1);
  /// The longest delay that a service may ask for.
  absl::Duration longest_asked_for = absl::Hours(1);
};

class RetryGate {
 public:
  explicit RetryGate(uint64_t random_bits, const RetryGateOptions& options = {});

  bool is_open(absl::Time now) const { return now >= next_; }
  /// When it opens; InfinitePast if it was never closed.
  absl::Time next() const { return next_; }

  /// `retry_after`: the delay that the service asked for, which counts if it is longer.
  void failed(absl::Time now, std::optional<absl::Duration> retry_after = std::nullopt);
  void succeeded();
  /// Opens it and forgets earlier failures, unless the service asked for a longer delay.
  void hurry();

 private:
  const RetryGateOptions options_;
  uint64_t random_state_;
  int failures_ = 0;  // in a row
  absl::Time asked_for_ = absl::InfinitePast();
  absl::Time next_ = absl::InfinitePast();
};

}  // namespace accelerate::trackers
