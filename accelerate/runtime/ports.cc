#include "accelerate/runtime/ports.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include <c10/util/Exception.h>

namespace accelerate {
namespace {

class Socket {
 public:
  explicit Socket(int family) : fd_(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  bool is_open() const { return fd_ >= 0; }
  int fd() const { return fd_; }

 private:
  const int fd_;
};

sockaddr_in loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

template <typename Address>
Address own_address(const Socket& socket) {
  Address address = {};
  socklen_t size = sizeof(address);
  TORCH_CHECK(getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size) == 0,
              "cannot read a socket's address: ", std::strerror(errno));
  return address;
}

template <typename Address>
bool bind_to(const Socket& socket, const Address& address) {
  return bind(socket.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

// Binds a socket of both families to any port; 0 where the machine knows IPv4 only.
int free_port_of_both() {
  const Socket socket(AF_INET6);
  if (!socket.is_open()) return 0;
  const int off = 0;
  if (setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)) != 0) return 0;
  sockaddr_in6 any = {};
  any.sin6_family = AF_INET6;
  any.sin6_addr = in6addr_any;
  return bind_to(socket, any) ? ntohs(own_address<sockaddr_in6>(socket).sin6_port) : 0;
}

int free_port_of_ipv4() {
  const Socket socket(AF_INET);
  sockaddr_in any = {};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_ANY);
  TORCH_CHECK(socket.is_open() && bind_to(socket, any),
              "cannot find a free port: ", std::strerror(errno));
  return ntohs(own_address<sockaddr_in>(socket).sin_port);
}

}  // namespace

bool is_port_in_use(int port) {
  TORCH_CHECK_VALUE(port >= 0 && port <= 65535, port, " is not a port");
  const Socket socket(AF_INET);
  TORCH_CHECK(socket.is_open(), "cannot make a socket: ", std::strerror(errno));
  const sockaddr_in address = loopback(port);
  if (connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return false;
  }
  // A socket that happens to be given this very port connects to itself.
  return own_address<sockaddr_in>(socket).sin_port != address.sin_port;
}

int get_free_port() {
  const int port = free_port_of_both();
  return port != 0 ? port : free_port_of_ipv4();
}

}  // namespace accelerate
