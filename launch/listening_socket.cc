#include "launch/listening_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace accelerate::launch {
namespace {

// Every rank connects at about the same time.
constexpr int kBacklog = 2048;

absl::Status error_on_port(uint16_t port, int error) {
  absl::string_view hint =
      error == EADDRINUSE ? "; leave out --main_process_port to take any free port" : "";
  return absl::UnavailableError(
      absl::StrCat("cannot listen on port ", port, " of 127.0.0.1: ", std::strerror(error), hint));
}

}  // namespace

absl::StatusOr<ListeningSocket> listen_on_loopback(uint16_t port) {
  ListeningSocket result;
  result.fd.reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!result.fd.is_open()) return error_on_port(port, errno);
  // A port named on the command line must be usable right after the last run on it.
  const int on = 1;
  setsockopt(result.fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  socklen_t length = sizeof(address);
  if (bind(result.fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(result.fd.get(), kBacklog) != 0 ||
      getsockname(result.fd.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return error_on_port(port, errno);
  }
  result.port = ntohs(address.sin_port);
  return result;
}

}  // namespace accelerate::launch
