/// Sockets that a run's other processes connect to: rank 0's rendezvous store, and the membership
/// server of the launchers.
///
/// The launcher opens the store's socket and hands it on, rather than only a number: between
/// finding a free port and binding it again, another program could take it.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "accelerate/platform/unique_fd.h"
#include "launch/process/socket_address.h"

namespace accelerate::launch::process {

/// A socket that listens. Closed on exec unless a child keeps it on purpose.
struct ListeningSocket {
  UniqueFd fd;
  uint16_t port = 0;
};

/// Listens on `address` and `port`, or on any free port if it is 0.
/// Errors: AlreadyExists if the port is taken, Unavailable for any other reason; both name the
///         address and the port and what the system said.
absl::StatusOr<ListeningSocket> listen_on(const SocketAddress& address, uint16_t port);

/// Listens on 127.0.0.1.
absl::StatusOr<ListeningSocket> listen_on_loopback(uint16_t port);

/// Listens on all of the machine's addresses, IPv6 and IPv4.
absl::StatusOr<ListeningSocket> listen_everywhere(uint16_t port);

}  // namespace accelerate::launch::process
