/// Addresses of machines, IPv4 or IPv6 with a port, and sockets that listen there.
/// Threads: values.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "accelerate/platform/unique_fd.h"

namespace accelerate::launcher::process {

class SocketAddress {
 public:
  SocketAddress() = default;
  /// Copies what a system call filled in.
  SocketAddress(const sockaddr* address, socklen_t size);

  /// From digits, as in "10.0.0.1" or "fe80::1%eth0"; never asks a name server.
  static std::optional<SocketAddress> from_text(const std::string& text);

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size() const { return size_; }
  int family() const { return storage_.ss_family; }
  uint16_t port() const;
  void set_port(uint16_t port);
  /// The address in digits, without the port; an IPv4 address inside an IPv6 one as IPv4.
  std::string host() const;
  bool is_loopback() const;

 private:
  sockaddr_storage storage_ = {};
  socklen_t size_ = 0;
};

/// This end and the other end of a socket; empty addresses if it has none.
SocketAddress local_address_of(int fd);
SocketAddress peer_address_of(int fd);

/// The addresses of a name, in the system's order of preference, with port 0. The system's resolver
/// may wait long for its servers, so it runs in a process that is killed after `limit`.
/// Errors: Unavailable naming the host and the reason.
absl::StatusOr<std::vector<SocketAddress>> resolve(const std::string& host, absl::Duration limit);

/// Whether the address is one of this machine's own.
bool is_own_address(const SocketAddress& address);

/// `HOST:PORT`, an IPv6 address in brackets.
std::string endpoint_text(absl::string_view host, uint16_t port);

/// A socket that a run's other processes connect to: rank 0's rendezvous store, or the membership
/// server of the launchers. Closed on exec unless a child keeps it on purpose.
///
/// The launcher opens the store's socket and hands it on, rather than only a number: between
/// finding a free port and binding it again, another program could take it.
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

}  // namespace accelerate::launcher::process
