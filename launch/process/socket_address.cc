#include "launch/process/socket_address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "accelerate/platform/child.h"
#include "accelerate/platform/unique_fd.h"

namespace accelerate::launcher::process {
namespace {

// The output of the resolving process: an error code of getaddrinfo, then addresses.
struct Answer {
  int error = 0;
  int count = 0;
  SocketAddress addresses[16];
};

constexpr addrinfo kHints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};

Answer ask_system(const std::string& host, int flags) {
  Answer answer;
  addrinfo hints = kHints;
  hints.ai_flags = flags;
  addrinfo* list = nullptr;
  answer.error = getaddrinfo(host.c_str(), nullptr, &hints, &list);
  for (addrinfo* entry = list; answer.error == 0 && entry != nullptr; entry = entry->ai_next) {
    if (answer.count == std::ssize(answer.addresses)) break;
    answer.addresses[answer.count++] = SocketAddress(entry->ai_addr, entry->ai_addrlen);
  }
  if (list != nullptr) freeaddrinfo(list);
  return answer;
}

SocketAddress address_of(int fd, int (*name_of)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage storage = {};
  socklen_t size = sizeof(storage);
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  if (name_of(fd, address, &size) != 0) return {};
  return SocketAddress(address, size);
}

// Every rank connects at about the same time.
constexpr int kBacklog = 2048;

}  // namespace

SocketAddress::SocketAddress(const sockaddr* address, socklen_t size)
    : size_(std::min<socklen_t>(size, sizeof(storage_))) {
  std::memcpy(&storage_, address, size_);
}

std::optional<SocketAddress> SocketAddress::from_text(const std::string& text) {
  const Answer answer = ask_system(text, AI_NUMERICHOST);
  if (answer.error != 0 || answer.count == 0) return std::nullopt;
  return answer.addresses[0];
}

uint16_t SocketAddress::port() const {
  if (family() == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(get())->sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in*>(get())->sin_port);
}

void SocketAddress::set_port(uint16_t port) {
  if (family() == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&storage_)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(&storage_)->sin_port = htons(port);
  }
}

std::string SocketAddress::host() const {
  char text[NI_MAXHOST] = {};
  if (getnameinfo(get(), size_, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) return "";
  constexpr absl::string_view kMapped = "::ffff:";
  const std::string host = text;
  if (absl::StartsWith(host, kMapped) && absl::StrContains(host, '.')) {
    return host.substr(kMapped.size());
  }
  return host;
}

bool SocketAddress::is_loopback() const {
  const std::string text = host();
  return text == "::1" || absl::StartsWith(text, "127.");
}

SocketAddress local_address_of(int fd) { return address_of(fd, getsockname); }
SocketAddress peer_address_of(int fd) { return address_of(fd, getpeername); }

absl::StatusOr<std::vector<SocketAddress>> resolve(const std::string& host, absl::Duration limit) {
  if (std::optional<SocketAddress> digits = SocketAddress::from_text(host)) {
    return std::vector<SocketAddress>{*digits};
  }
  const auto failed = [&](absl::string_view why) {
    return absl::UnavailableError(
        absl::StrCat("cannot resolve the host name '", host, "': ", why,
                     "; check the name, /etc/hosts and DNS, or give an address"));
  };
  const absl::StatusOr<ChildResult> child = run_in_child(
      [&](int fd) {
        const Answer answer = ask_system(host, 0);
        write_all(fd, {reinterpret_cast<const char*>(&answer), sizeof(answer)});
      },
      limit);
  if (!child.ok()) return failed(child.status().message());
  Answer answer;
  if (child->output.size() != sizeof(answer)) {
    return failed(absl::StrCat("no answer within ", absl::FormatDuration(limit)));
  }
  std::memcpy(static_cast<void*>(&answer), child->output.data(), sizeof(answer));
  if (answer.error != 0) return failed(gai_strerror(answer.error));
  if (answer.count == 0) return failed("it has no address");
  return std::vector<SocketAddress>(answer.addresses, answer.addresses + answer.count);
}

bool is_own_address(const SocketAddress& address) {
  // Only an address of this machine can be bound; this needs no list of interfaces.
  UniqueFd fd(socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  SocketAddress any_port = address;
  any_port.set_port(0);
  return bind(fd.get(), any_port.get(), any_port.size()) == 0;
}

std::string endpoint_text(absl::string_view host, uint16_t port) {
  if (absl::StrContains(host, ':')) return absl::StrCat("[", host, "]:", port);
  return absl::StrCat(host, ":", port);
}

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

}  // namespace accelerate::launcher::process
