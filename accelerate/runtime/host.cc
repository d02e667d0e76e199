#include "accelerate/runtime/host.h"

#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include "accelerate/platform/environment.h"
#include "accelerate/platform/unique_fd.h"

namespace accelerate {
namespace {

UniqueFd open_socket(int family) { return UniqueFd(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

template <typename Address>
Address own_address(const UniqueFd& socket) {
  Address address = {};
  socklen_t size = sizeof(address);
  TORCH_CHECK(getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0,
              "cannot read a socket's address: ", std::strerror(errno));
  return address;
}

template <typename Address>
bool bind_to(const UniqueFd& socket, const Address& address) {
  return bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

// Binds a socket of both families to any port; 0 where the machine knows IPv4 only.
int free_port_of_both() {
  const UniqueFd socket = open_socket(AF_INET6);
  if (!socket.is_open()) return 0;
  const int off = 0;
  if (setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)) != 0) return 0;
  sockaddr_in6 any = {};
  any.sin6_family = AF_INET6;
  any.sin6_addr = in6addr_any;
  return bind_to(socket, any) ? ntohs(own_address<sockaddr_in6>(socket).sin6_port) : 0;
}

int free_port_of_ipv4() {
  const UniqueFd socket = open_socket(AF_INET);
  sockaddr_in any = {};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_ANY);
  TORCH_CHECK(socket.is_open() && bind_to(socket, any),
              "cannot find a free port: ", std::strerror(errno));
  return ntohs(own_address<sockaddr_in>(socket).sin_port);
}

}  // namespace

namespace host {

void write_console(ConsoleStream stream, std::string_view text) {
  std::FILE* file = stream == ConsoleStream::kOut ? stdout : stderr;
  std::fwrite(text.data(), 1, text.size(), file);
  std::fflush(file);
}

bool is_terminal(ConsoleStream stream) {
  return isatty(stream == ConsoleStream::kOut ? STDOUT_FILENO : STDERR_FILENO) == 1;
}

std::string name() {
  std::array<char, 256> text{};
  gethostname(text.data(), text.size() - 1);
  return text.data();
}

std::optional<int64_t> available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  std::string unit;
  int64_t kibibytes = 0;
  while (file >> name >> kibibytes) {
    if (name == "MemAvailable:") return kibibytes * 1024;
    std::getline(file, unit);
  }
  return std::nullopt;
}

void release_free_memory() {
#ifdef __GLIBC__
  malloc_trim(/*pad=*/0);
#endif
}

}  // namespace host

void limit_intra_op_threads(const Environment& environment) {
  if (!environment.get_or(env::kOmpNumThreads, "").empty()) return;
  at::set_num_threads(1);
  // OpenBLAS keeps threads of its own, which LibTorch does not know. Which BLAS is loaded is the
  // system's choice, so the function is looked up rather than linked.
  using SetNumThreads = void (*)(int);
  if (auto set = reinterpret_cast<SetNumThreads>(dlsym(RTLD_DEFAULT, "openblas_set_num_threads"))) {
    set(1);
  }
}

bool is_port_in_use(int port) {
  TORCH_CHECK_VALUE(port >= 0 && port <= 65535, port, " is not a port");
  const UniqueFd socket = open_socket(AF_INET);
  TORCH_CHECK(socket.is_open(), "cannot make a socket: ", std::strerror(errno));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
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
