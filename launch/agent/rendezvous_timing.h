/// How long machines wait for one another, from torchrun's `--rdzv_conf`.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace accelerate::launch::agent {

struct RendezvousTiming {
  absl::Duration join_timeout = absl::Seconds(600);
  absl::Duration last_call_timeout = absl::Seconds(30);
  /// How long the hosting machine waits for the others to receive the end.
  absl::Duration close_timeout = absl::Seconds(30);
  /// How long an answer of the server may take.
  absl::Duration read_timeout = absl::Seconds(60);
  absl::Duration keep_alive_interval = absl::Seconds(5);
  /// A machine that sends nothing for this many intervals counts as lost.
  int keep_alive_max_attempt = 3;
  /// Whether this machine runs the server; unset: if the endpoint is its own.
  std::optional<bool> is_host;

  absl::Duration liveness_timeout() const { return keep_alive_interval * keep_alive_max_attempt; }
};

/// Reads the pairs. `timeout` is the static back-end's word for join_timeout. `rank` and
/// `store_type` of torchrun's own back-ends mean nothing here and are passed over. Errors:
/// InvalidArgument naming the key and the value, or a key that there is not.
absl::StatusOr<RendezvousTiming> rendezvous_timing(const std::map<std::string, std::string>& pairs);

}  // namespace accelerate::launch::agent
