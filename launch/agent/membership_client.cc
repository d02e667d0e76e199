#include "launch/agent/membership_client.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace accelerate::launcher::agent {
namespace {

// All addresses together get this long to answer at all.
constexpr std::chrono::milliseconds kConnectTimeout(4000);
constexpr std::chrono::milliseconds kRetryPause(100);
// When people begin to wonder.
constexpr std::chrono::seconds kQuietWait(2);

}  // namespace

MembershipClient::MembershipClient(MembershipClientOptions options, Handshake handshake)
    : options_(std::move(options)), handshake_(std::move(handshake)) {
  connect_next();
}

MembershipClient::MembershipClient(MembershipClientOptions options, Handshake handshake,
                                   UniqueFd connection)
    : options_(std::move(options)), handshake_(std::move(handshake)) {
  shake_hands(std::move(connection));
}

std::string MembershipClient::endpoint() const {
  return process::endpoint_text(options_.endpoint_host, options_.endpoint_port);
}

void MembershipClient::connect_next() {
  state_ = State::kConnecting;
  since_ = Clock::now();
  process::SocketAddress address = options_.addresses[next_address_];
  address.set_port(options_.endpoint_port);
  connecting_.reset(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!connecting_.is_open()) return could_not_connect(errno);
  if (connect(connecting_.get(), address.get(), address.size()) == 0) return finish_connecting();
  if (errno != EINPROGRESS) could_not_connect(errno);
}

void MembershipClient::finish_connecting() {
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(connecting_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return could_not_connect(error);
  // The others reach this machine where its route to the server begins.
  const process::SocketAddress local = process::local_address_of(connecting_.get());
  if (handshake_.machine.address.empty() && !local.is_loopback()) {
    handshake_.machine.address = local.host();
  }
  if (handshake_.machine.address.empty()) {
    handshake_.machine.address = options_.endpoint_host;
  }
  shake_hands(std::move(connecting_));
}

void MembershipClient::could_not_connect(int error) {
  connecting_.reset();
  if (error == ECONNREFUSED || error == ECONNRESET) host_answered_ = true;
  if (first_problem_.empty()) {
    first_problem_ = absl::StrCat(options_.addresses[next_address_].host(), ": ",
                                  error == ETIMEDOUT ? "no answer" : std::strerror(error));
  }
  if (++next_address_ < options_.addresses.size()) return connect_next();
  next_address_ = 0;
  if (!host_answered_ && !options_.waits_for_unreachable) {
    return give_up(absl::StrCat("cannot reach ", endpoint(), " (", first_problem_,
                                "); check the address, the network and the firewall of the "
                                "machine that listens"));
  }
  host_answered_ = false;
  first_problem_.clear();
  state_ = State::kPausing;
  since_ = Clock::now();
}

void MembershipClient::shake_hands(UniqueFd fd) {
  state_ = State::kShakingHands;
  since_ = last_received_ = last_alive_ = Clock::now();
  channel_.emplace(std::move(fd));
  handshake_.clock = absl::Now();
  channel_->send(to_message(handshake_));
  for (const Message& message : std::exchange(early_, {})) channel_->send(message);
}

void MembershipClient::send(Message message) {
  if (channel_) {
    channel_->send(message);
  } else {
    early_.push_back(std::move(message));
  }
}

void MembershipClient::ready(uint16_t store_port) {
  send({.verb = "ready", .fields = {{"port", absl::StrCat(store_port)}}});
}

void MembershipClient::failed(const Failure& failure) {
  send({.verb = "failed",
        .fields = {{"exit_code", absl::StrCat(failure.exit_code)}, {"text", failure.text}}});
}

void MembershipClient::done() { send({.verb = "done"}); }

void MembershipClient::leave(const Failure& failure) {
  if (!channel_ || !channel_->is_open()) {
    state_ = State::kOver;
    connecting_.reset();
    return;
  }
  send({.verb = "leave",
        .fields = {{"exit_code", absl::StrCat(failure.exit_code)}, {"text", failure.text}}});
  state_ = State::kLeaving;
  since_ = Clock::now();
}

bool MembershipClient::is_flushed() const {
  return state_ == State::kOver || !channel_ || !channel_->is_open();
}

void MembershipClient::add_entries(std::vector<pollfd>& entries) {
  if (channel_ && channel_->is_open()) {
    entries.push_back(channel_->entry());
  } else {
    entries.push_back({.fd = connecting_.get(), .events = POLLOUT, .revents = 0});
  }
}

void MembershipClient::react(absl::Span<const pollfd> entries) {
  if (state_ == State::kConnecting && entries[0].revents != 0) finish_connecting();
  if (channel_ && channel_->is_open() && channel_->fd() == entries[0].fd) {
    if (entries[0].revents & POLLIN) last_received_ = Clock::now();
    const absl::Status ok = channel_->react(entries[0]);
    receive();
    if (!ok.ok()) {
      if (state_ == State::kShakingHands) {
        give_up(absl::StrCat("what listens at ", endpoint(),
                             " is not a membership server of this launcher: ", ok.message()));
      } else if (state_ == State::kMember) {
        give_up(absl::StrCat("lost the machine at ", endpoint(),
                             " that keeps the run together: ", ok.message()));
      }
    }
  }
  check_time();
}

void MembershipClient::receive() {
  while (true) {
    absl::StatusOr<std::optional<Message>> message = channel_->next();
    if (!message.ok()) {
      return give_up(absl::StrCat(
          "what listens at ", endpoint(),
          " is not a membership server of this launcher: ", message.status().message()));
    }
    if (!*message) return;
    handle(**message);
  }
}

void MembershipClient::handle(const Message& message) {
  if (state_ == State::kShakingHands) {
    if (message.verb == "welcome") {
      state_ = State::kMember;
    } else if (message.verb == "refused") {
      give_up(absl::StrCat(endpoint(), " refused this machine: ", message.text("text")));
    } else {
      give_up(absl::StrCat("what listens at ", endpoint(),
                           " is not a membership server of this launcher"));
    }
    return;
  }
  if (state_ != State::kMember || message.verb == "alive") return;
  absl::StatusOr<Order> order = to_order(message);
  if (!order.ok()) return give_up(absl::StrCat(endpoint(), " sent ", order.status().message()));
  if (order->kind == Order::Kind::kEnd) {
    state_ = State::kOver;
    channel_->close();
  }
  orders_.push_back(*std::move(order));
}

void MembershipClient::give_up(const std::string& text) {
  if (state_ == State::kOver) return;
  state_ = State::kOver;
  connecting_.reset();
  if (channel_) channel_->close();
  orders_.push_back({.kind = Order::Kind::kEnd, .exit_code = 1, .text = text});
}

void MembershipClient::check_time() {
  const Clock::time_point now = Clock::now();
  const auto waited = now - began_;
  if (state_ == State::kConnecting && now - since_ >= kConnectTimeout / options_.addresses.size()) {
    could_not_connect(ETIMEDOUT);
  }
  if (state_ == State::kPausing) {
    if (waited >= absl::ToChronoNanoseconds(options_.timing.join_timeout)) {
      return give_up(absl::StrCat("no launcher listens at ", endpoint(), " after ",
                                  absl::FormatDuration(options_.timing.join_timeout),
                                  "; start the launcher of that machine"));
    }
    if (waited >= kQuietWait && !said_waiting_) {
      said_waiting_ = true;
      orders_.push_back(
          {.kind = Order::Kind::kNotice,
           .text = absl::StrCat("waiting for the launcher of the machine at ", endpoint())});
    }
    if (now - since_ >= kRetryPause) connect_next();
  }
  if (state_ == State::kShakingHands &&
      now - since_ >= absl::ToChronoNanoseconds(options_.timing.read_timeout)) {
    give_up(absl::StrCat(
        "what listens at ", endpoint(),
        " did not answer the handshake; it is not a membership server of this launcher"));
  }
  if (state_ == State::kMember) {
    if (now - last_received_ > absl::ToChronoNanoseconds(options_.timing.liveness_timeout())) {
      give_up(absl::StrCat("lost the machine at ", endpoint(),
                           " that keeps the run together: it does not answer any more"));
    } else if (now - last_alive_ >=
               absl::ToChronoNanoseconds(options_.timing.keep_alive_interval)) {
      last_alive_ = now;
      channel_->send({.verb = "alive"});
    }
  }
}

std::optional<process::EventSource::Clock::time_point> MembershipClient::deadline() const {
  switch (state_) {
    case State::kConnecting: return since_ + kConnectTimeout / options_.addresses.size();
    case State::kPausing: return since_ + kRetryPause;
    case State::kShakingHands:
      return since_ + absl::ToChronoNanoseconds(options_.timing.read_timeout);
    case State::kMember:
      return last_alive_ + absl::ToChronoNanoseconds(options_.timing.keep_alive_interval);
    default: return std::nullopt;
  }
}

}  // namespace accelerate::launcher::agent
