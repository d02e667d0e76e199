#include "launch/process/listening_socket.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace accelerate::launch::process {
namespace {

// Every rank connects at about the same time.
constexpr int kBacklog = 2048;

}  // namespace

absl::StatusOr<ListeningSocket> listen_on(const SocketAddress& address, uint16_t port) {
  SocketAddress bound = address;
  bound.set_port(port);
  const auto failed = [&](int error) {
    const std::string text = absl::StrCat("cannot listen on port ", port, " of ", address.host(),
                                          ": ", std::strerror(error));
    return error == EADDRINUSE ? absl::AlreadyExistsError(text) : absl::UnavailableError(text);
  };
  ListeningSocket result;
  result.fd.reset(socket(bound.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!result.fd.is_open()) return failed(errno);
  // A port named on the command line must be usable right after the last run on it.
  const int on = 1;
  setsockopt(result.fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const int off = 0;
  if (bound.family() == AF_INET6) {
    setsockopt(result.fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  if (bind(result.fd.get(), bound.get(), bound.size()) != 0 ||
      listen(result.fd.get(), kBacklog) != 0) {
    return failed(errno);
  }
  result.port = local_address_of(result.fd.get()).port();
  return result;
}

absl::StatusOr<ListeningSocket> listen_on_loopback(uint16_t port) {
  return listen_on(SocketAddress::from_text("127.0.0.1").value(), port);
}

absl::StatusOr<ListeningSocket> listen_everywhere(uint16_t port) {
  absl::StatusOr<ListeningSocket> both = listen_on(SocketAddress::from_text("::").value(), port);
  if (both.ok() || absl::IsAlreadyExists(both.status())) return both;
  // A machine without IPv6.
  return listen_on(SocketAddress::from_text("0.0.0.0").value(), port);
}

}  // namespace accelerate::launch::process
