#include "integration_tests/golden/local_socket.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

enum class Address { kLoopback, kAny, kIpv6Loopback, kBothAny };

struct State {
  const char* name;
  Address address;
  bool listens;
  bool closed;
};

constexpr State kStates[] = {
    {"free", Address::kLoopback, false, true},
    {"closed", Address::kLoopback, true, true},
    {"closed_again", Address::kLoopback, true, true},
    {"bound", Address::kLoopback, false, false},
    {"listening", Address::kLoopback, true, false},
    {"listening_any", Address::kAny, true, false},
    {"listening_all", Address::kAny, true, false},
    {"listening_ipv6_only", Address::kIpv6Loopback, true, false},
    {"listening_dual", Address::kBothAny, true, false},
};

const State& find(const std::string& name) {
  for (const State& state : kStates) {
    if (name == state.name) return state;
  }
  throw CaseError("state: unknown state \"" + name + "\"");
}

// Binds to the port, or to one that the system chooses; returns it, 0 on failure.
int bind_ipv4(int fd, in_addr_t host, int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(host);
  address.sin_port = htons(static_cast<in_port_t>(port));
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof(address);
  if (bind(fd, generic, size) != 0 || getsockname(fd, generic, &size) != 0) return 0;
  return ntohs(address.sin_port);
}

int bind_ipv6(int fd, const in6_addr& host, int port, int ipv6_only) {
  sockaddr_in6 address = {};
  address.sin6_family = AF_INET6;
  address.sin6_addr = host;
  address.sin6_port = htons(static_cast<in_port_t>(port));
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof(address);
  if (setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &ipv6_only, sizeof(ipv6_only)) != 0) return 0;
  if (bind(fd, generic, size) != 0 || getsockname(fd, generic, &size) != 0) return 0;
  return ntohs(address.sin6_port);
}

int bind_to(int fd, Address address, int port) {
  switch (address) {
    case Address::kLoopback: return bind_ipv4(fd, INADDR_LOOPBACK, port);
    case Address::kAny: return bind_ipv4(fd, INADDR_ANY, port);
    case Address::kIpv6Loopback: return bind_ipv6(fd, in6addr_loopback, port, 1);
    case Address::kBothAny: return bind_ipv6(fd, in6addr_any, port, 0);
  }
  return 0;
}

bool is_ipv4(Address address) { return address == Address::kLoopback || address == Address::kAny; }

}  // namespace

LocalSocket::LocalSocket(const std::string& name, int port) {
  const State& state = find(name);
  fd_ = socket(is_ipv4(state.address) ? AF_INET : AF_INET6, SOCK_STREAM, 0);
  if (port != 0) {
    // Connections of an earlier case may linger there.
    const int reuse = 1;
    setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
  }
  // On a machine without IPv6 nothing listens there either.
  if (fd_ < 0 || (port_ = bind_to(fd_, state.address, port)) == 0) {
    if (port != 0 && errno == EADDRINUSE) {
      port_ = port;
      return;
    }
    if (state.address == Address::kIpv6Loopback) {
      if (fd_ >= 0) close(fd_);
      fd_ = socket(AF_INET, SOCK_STREAM, 0);
      port_ = bind_to(fd_, Address::kLoopback, port);
      return;
    }
    throw CaseError("state: cannot make a socket that is " + name);
  }
  if (state.listens && listen(fd_, 1) != 0) throw CaseError("state: cannot listen");
  if (state.closed) {
    close(fd_);
    fd_ = -1;
  }
}

LocalSocket::~LocalSocket() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace accelerate::golden
