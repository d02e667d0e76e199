/// An MlflowClient that holds back what is logged and sends it in batches.
///
/// The buffers are bounded: when they are full, what comes is dropped and counted. While the store
/// is away everything waits, and the store is asked again when a RetryGate opens. Entries that the
/// store refuses are counted and not sent again.
/// Errors:  as MlflowClient's. `flush` first sends what it can, then throws the first refusal.
/// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "accelerate/tracking/tracker.h"
#include "trackers/common/retry_gate.h"
#include "trackers/mlflow/mlflow_client.h"
#include "trackers/mlflow/mlflow_store.h"

namespace accelerate::trackers {

struct BufferedClientOptions {
  /// Metrics that wait, at most.
  size_t max_metrics = 500000;
  /// Bytes of params, tags, images and texts that wait, at most. Files wait where they are.
  size_t max_bytes = size_t{64} << 20;
  /// For one call of the store.
  absl::Duration call_limit = absl::Seconds(10);
  /// For one flush; the rest waits for the next.
  absl::Duration flush_limit = absl::Seconds(5);
  RetryGateOptions retry = {};
  /// Waits that long, at the end of training only. Empty: blocks the thread.
  std::function<void(absl::Duration)> wait = nullptr;
};

/// The services outlive the client.
std::unique_ptr<MlflowClient> make_buffered_client(std::unique_ptr<MlflowStore> store,
                                                   const TrackerServices& services,
                                                   uint64_t random_bits,
                                                   BufferedClientOptions options = {});

}  // namespace accelerate::trackers
