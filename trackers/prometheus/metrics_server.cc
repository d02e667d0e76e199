#include "trackers/prometheus/metrics_server.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace accelerate::trackers {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxClients = 32;
constexpr size_t kMaxRequest = 8 << 10;
constexpr auto kPatience = std::chrono::seconds(5);

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

struct AddressList {
  AddressList(const std::string& address, int port) {
    const addrinfo hints{.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE,
                         .ai_family = AF_UNSPEC,
                         .ai_socktype = SOCK_STREAM};
    if (::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &first) != 0) {
      first = nullptr;
    }
  }
  ~AddressList() {
    if (first != nullptr) ::freeaddrinfo(first);
  }
  AddressList(const AddressList&) = delete;
  AddressList& operator=(const AddressList&) = delete;

  addrinfo* first = nullptr;
};

Descriptor listen_at(const std::string& address, int port) {
  const auto fail = [&](const char* why) -> Descriptor {
    throw std::runtime_error(
        absl::StrCat("cannot serve metrics at ", address, " port ", port, ": ", why,
                     errno == EADDRINUSE ? "; choose another `port`, or 0 for any free port" : ""));
  };
  const AddressList list(address, port);
  if (list.first == nullptr) return fail("it is not an address");
  Descriptor listener(
      ::socket(list.first->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int yes = 1;
  if (listener.get() < 0) return fail(std::strerror(errno));
  ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (::bind(listener.get(), list.first->ai_addr, list.first->ai_addrlen) != 0 ||
      ::listen(listener.get(), SOMAXCONN) != 0) {
    return fail(std::strerror(errno));
  }
  return listener;
}

std::string response(std::string_view status, std::string_view body, bool with_body = true,
                     std::string_view more = "") {
  return absl::StrCat("HTTP/1.0 ", std::string(status),
                      "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8"
                      "\r\nContent-Length: ",
                      body.size(), "\r\nConnection: close\r\n", std::string(more), "\r\n",
                      with_body ? std::string(body) : "");
}

bool is_whole(const std::string& request) {
  return request.find("\r\n\r\n") != request.npos || request.find("\n\n") != request.npos;
}

std::string answer(const std::string& request, const std::function<std::string()>& page) {
  const std::string line = request.substr(0, request.find_first_of("\r\n"));
  const size_t first = line.find(' ');
  const size_t last = line.rfind(' ');
  if (first == line.npos || first == last || !line.substr(last + 1).starts_with("HTTP/")) {
    return response("400 Bad Request", "this is not HTTP\n");
  }
  const std::string method = line.substr(0, first);
  std::string path = line.substr(first + 1, last - first - 1);
  path.resize(std::min(path.find('?'), path.size()));
  if (method != "GET" && method != "HEAD") {
    return response("405 Method Not Allowed", "GET or HEAD\n", true, "Allow: GET, HEAD\r\n");
  }
  const bool with_body = method == "GET";
  if (path != "/metrics") return response("404 Not Found", "see /metrics\n", with_body);
  return response("200 OK", page(), with_body);
}

struct Client {
  Descriptor socket;
  Clock::time_point deadline;
  std::string request;
  std::string response;
  size_t sent = 0;
  bool answered = false;  // further bytes of the client are ignored
  bool gone = false;
};

}  // namespace

class MetricsServer::Loop {
 public:
  Loop(const std::string& address, int port, std::function<std::string()> page)
      : page_(std::move(page)),
        listener_(listen_at(address, port)),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (wake_.get() < 0) throw std::runtime_error(std::strerror(errno));
    sockaddr_storage bound{};
    socklen_t size = sizeof(bound);
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&bound), &size);
    port_ = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                              : reinterpret_cast<sockaddr_in&>(bound).sin_port);
    // Signals must reach the program's own threads only.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { run(); });
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  ~Loop() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
    thread_.join();
  }

  int port() const { return port_; }

 private:
  void run() {
    while (true) {
      std::vector<pollfd> polled{{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      if (Clock::now() < pause_) polled[1].fd = -1;
      for (const Client& client : clients_) {
        const bool writes = client.sent < client.response.size();
        polled.push_back({client.socket.get(), static_cast<short>(writes ? POLLOUT : POLLIN), 0});
      }
      if (::poll(polled.data(), polled.size(), timeout()) < 0 && errno != EINTR) return;
      if (polled[0].revents != 0) return;
      for (size_t i = 0; i < clients_.size(); ++i) {
        if (polled[i + 2].revents != 0) serve(clients_[i]);
      }
      const auto now = Clock::now();
      std::erase_if(clients_,
                    [&](const Client& client) { return client.gone || client.deadline <= now; });
      if (polled[1].revents != 0) accept();
    }
  }

  // Milliseconds until the next deadline; -1 for none.
  int timeout() const {
    if (clients_.empty() && Clock::now() >= pause_) return -1;
    auto next = Clock::now() < pause_ ? pause_ : Clock::time_point::max();
    for (const Client& client : clients_) next = std::min(next, client.deadline);
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now());
    return static_cast<int>(std::max<int64_t>(0, wait.count()));
  }

  void accept() {
    Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.get() < 0) {
      // Without free descriptors, retrying at once would spin.
      if (errno == EMFILE || errno == ENFILE) pause_ = Clock::now() + std::chrono::seconds(1);
      return;
    }
    if (clients_.size() >= kMaxClients) clients_.pop_front();
    clients_.push_back({.socket = std::move(socket), .deadline = Clock::now() + kPatience});
  }

  void serve(Client& client) {
    if (client.sent < client.response.size()) {
      send(client);
      return;
    }
    char buffer[4096];
    const ssize_t got = ::recv(client.socket.get(), buffer, sizeof(buffer), 0);
    if (got <= 0) {
      client.gone = got == 0 || (errno != EAGAIN && errno != EINTR);
      return;
    }
    if (client.answered) return;
    client.request.append(buffer, static_cast<size_t>(got));
    if (is_whole(client.request)) {
      client.response = answer(client.request, page_);
    } else if (client.request.size() > kMaxRequest) {
      client.response = response("431 Request Header Fields Too Large", "too much\n");
    } else {
      return;
    }
    send(client);
  }

  void send(Client& client) {
    const ssize_t sent = ::send(client.socket.get(), client.response.data() + client.sent,
                                client.response.size() - client.sent, MSG_NOSIGNAL);
    if (sent < 0) {
      client.gone = errno != EAGAIN && errno != EINTR;
      return;
    }
    client.sent += static_cast<size_t>(sent);
    if (client.sent < client.response.size()) return;
    // Closing now would reset the connection of a client that is still sending.
    client.answered = true;
    ::shutdown(client.socket.get(), SHUT_WR);
  }

  const std::function<std::string()> page_;
  const Descriptor listener_;
  const Descriptor wake_;
  int port_ = 0;
  std::deque<Client> clients_;  // the oldest first
  Clock::time_point pause_;     // no client is accepted before
  std::thread thread_;          // last: it uses the others
};

MetricsServer::MetricsServer(const std::string& address, int port,
                             std::function<std::string()> page)
    : loop_(std::make_unique<Loop>(address, port, std::move(page))) {}

MetricsServer::~MetricsServer() = default;

int MetricsServer::port() const { return loop_->port(); }

bool MetricsServer::is_address(const std::string& address) {
  return !address.empty() && AddressList(address, 0).first != nullptr;
}

}  // namespace accelerate::trackers
