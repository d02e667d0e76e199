#include "trackers/prometheus/prometheus_tracker.h"

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
#include "accelerate/platform/unique_fd.h"
#include "trackers/common/file_options.h"
#include "trackers/common/formats.h"
#include "trackers/common/init_kwargs.h"
#include "trackers/common/numbers.h"
#include "trackers/common/secrets.h"

namespace accelerate::trackers {
namespace {

constexpr std::string_view kExtension = ".prom";
constexpr char kName[] = "prometheus";
constexpr int kDefaultPort = 9499;
constexpr size_t kMaxSaid = 100;

const TrackerRegistration kRegistration(
    {.name = kName,
     .requires_logging_directory = false,
     .tracker = make_tracker<PrometheusTracker>,
     .unavailable = [](const TrackerServices& services) -> std::string {
       return services.is_real ? "" : "Prometheus cannot scrape a simulation";
     }});

// ---- The server.

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxClients = 32;
constexpr size_t kMaxRequest = 8 << 10;
constexpr auto kPatience = std::chrono::seconds(5);

struct FreeAddresses {
  void operator()(addrinfo* first) const { ::freeaddrinfo(first); }
};

// Null if it is not a numeric address.
std::unique_ptr<addrinfo, FreeAddresses> addresses(const std::string& address, int port) {
  const addrinfo hints{.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE,
                       .ai_family = AF_UNSPEC,
                       .ai_socktype = SOCK_STREAM};
  addrinfo* first = nullptr;
  const int error = ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &first);
  return std::unique_ptr<addrinfo, FreeAddresses>(error == 0 ? first : nullptr);
}

UniqueFd listen_at(const std::string& address, int port) {
  const auto fail = [&](const char* why) -> UniqueFd {
    throw std::runtime_error(
        absl::StrCat("cannot serve metrics at ", address, " port ", port, ": ", why,
                     errno == EADDRINUSE ? "; choose another `port`, or 0 for any free port" : ""));
  };
  const auto first = addresses(address, port);
  if (first == nullptr) return fail("it is not an address");
  UniqueFd listener(::socket(first->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int yes = 1;
  if (listener.get() < 0) return fail(std::strerror(errno));
  ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (::bind(listener.get(), first->ai_addr, first->ai_addrlen) != 0 ||
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
  UniqueFd socket;
  Clock::time_point deadline;
  std::string request;
  std::string response;
  size_t sent = 0;
  bool answered = false;  // further bytes of the client are ignored
  bool gone = false;
};

}  // namespace

// A minimal HTTP server for Prometheus, which answers only GET /metrics. One thread serves all
// clients without waiting for any. A client is disconnected after 5 s, after 8 KiB of request, or
// when 32 others have connected after it.
// Errors: std::runtime_error naming address and port if it cannot listen there.
class MetricsServer {
 public:
  // `address`: the numeric IPv4 or IPv6 address of an interface. `port`: 0 for any free port.
  // `page` is called on the server's own thread.
  MetricsServer(const std::string& address, int port, std::function<std::string()> page)
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

  // Disconnects clients that are not served yet.
  ~MetricsServer() {
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
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
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
    const std::string& request = client.request;
    if (request.find("\r\n\r\n") != request.npos || request.find("\n\n") != request.npos) {
      client.response = answer(request, page_);
    } else if (request.size() > kMaxRequest) {
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
  const UniqueFd listener_;
  const UniqueFd wake_;
  int port_ = 0;
  std::deque<Client> clients_;  // the oldest first
  Clock::time_point pause_;     // no client is accepted before
  std::thread thread_;          // last: it uses the others
};

PrometheusTracker::Options::Options(const TrackerSetup& setup) {
  InitKwargs kwargs(kName, setup.init_kwargs);
  textfile = kwargs.text("textfile").value_or("");
  if (kwargs.text("textfile") && !textfile.ends_with(kExtension)) {
    kwargs.refuse("textfile", "a path that ends with .prom");
  }
  if (const auto number = kwargs.integer("port")) {
    if (*number < 0 || *number > 65535) kwargs.refuse("port", "between 0 and 65535");
    port = static_cast<int>(*number);
  } else if (textfile.empty()) {
    port = kDefaultPort;
  }
  // Each rank of a machine has its own port and file.
  if (const int rank = setup.services.rank; rank > 0) {
    if (port && *port > 0) *port += rank;
    if (port && *port > 65535) {
      kwargs.refuse("port", absl::StrCat("at most 65535 with rank ", rank, " added to it"));
    }
    if (!textfile.empty()) {
      textfile.insert(textfile.size() - kExtension.size(), absl::StrCat(".rank_", rank));
    }
  }
  address = kwargs.text("address").value_or("127.0.0.1");
  if (address.empty() || addresses(address, 0) == nullptr)
    kwargs.refuse("address", "an address in numbers");
  prefix = kwargs.text("prefix").value_or("accelerate_");
  kwargs.finish();
}

PrometheusTracker::PrometheusTracker(const TrackerSetup& setup)
    : services_(setup.services),
      options_(setup),
      metrics_(options_.prefix,
               {{"run", setup.project_name}, {"rank", absl::StrCat(setup.services.rank)}}) {
  // Takes the tracker's own name before a logged value can.
  metrics_.set("last_log_timestamp_seconds", unix_seconds(setup.time));
}

PrometheusTracker::~PrometheusTracker() = default;

int PrometheusTracker::port() const { return server_ ? server_->port() : 0; }

void PrometheusTracker::start() {
  if (!options_.port) return;
  server_ = std::make_unique<MetricsServer>(options_.address, *options_.port,
                                            [this] { return metrics_.text(); });
  const bool is_ipv6 = options_.address.find(':') != std::string::npos;
  services_.info(absl::StrCat("metrics are at http://", is_ipv6 ? "[" : "", options_.address,
                              is_ipv6 ? "]:" : ":", server_->port(), "/metrics"));
}

void PrometheusTracker::store_init_configuration(const TrackerDict& values) {
  MetricsText::Labels labels;
  for_each_value(values, [&](const std::string& name, const TrackerValue& value) {
    const bool is_empty = value.get_if<TrackerDict>() != nullptr;
    if (is_empty || is_secret_name(name)) return;
    labels.emplace_back(name, without_url_secrets(value_text(value)));
  });
  metrics_.set_info("config_info", labels);
  is_new_ = true;
}

void PrometheusTracker::log(const TrackerDict& values, const TrackerStep& step) {
  if (step.step) metrics_.set("step", static_cast<double>(*step.step));
  metrics_.set("last_log_timestamp_seconds", unix_seconds(step.time));
  for_each_value(values, [&](const std::string& name, const TrackerValue& value) {
    if (value.get_if<TrackerDict>() != nullptr) return;  // it is empty
    // The user's metric may have the same name as one of the tracker's own.
    set(name == "step" || name == "last_log_timestamp_seconds" || name == "config_info"
            ? absl::StrCat("logged_", name)
            : name,
        value);
  });
  is_new_ = true;
  refuse_log_kwargs(kName, step.kwargs);
}

void PrometheusTracker::flush() {
  if (!is_new_ || options_.textfile.empty()) return;
  throw_if_error(write_file(services_.files, options_.textfile, metrics_.text()));
  is_new_ = false;
}

void PrometheusTracker::finish() {
  server_.reset();
  flush();
}

void PrometheusTracker::set(const std::string& name, const TrackerValue& value) {
  std::optional<double> number = value.number();
  const auto* const tensor = value.get_if<TensorValue>();
  if (tensor != nullptr && tensor->values.size() == 1) number = tensor->values[0];
  if (!number) {
    leave_out(name, absl::StrCat("is of type ", std::string(type_name(value)),
                                 ", which is not a number"));
  } else if (!metrics_.set(name, *number)) {
    leave_out(name, "is one name too many");
  }
}

void PrometheusTracker::leave_out(const std::string& name, const std::string& why) {
  if (said_.size() >= kMaxSaid || !said_.insert(name).second) return;
  services_.warn(absl::StrCat("tracker prometheus: `", name, "` ", why, "; it is left out"));
}

}  // namespace accelerate::trackers
