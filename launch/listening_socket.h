/// The loopback socket on which rank 0 will serve the rendezvous store.
///
/// The launcher opens it and hands the open socket on, rather than only a number: between finding a
/// free port and binding it again, somebody else could take it.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "launch/unique_fd.h"

namespace accelerate::launch {

/// A socket that listens on 127.0.0.1. Closed on exec unless a child keeps it on purpose.
struct ListeningSocket {
  UniqueFd fd;
  uint16_t port = 0;
};

/// Listens on `port`, or on any free port if it is 0.
/// Errors: Unavailable naming the port and what the system said.
absl::StatusOr<ListeningSocket> listen_on_loopback(uint16_t port);

}  // namespace accelerate::launch
