#include "launch/agent/membership_server.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace accelerate::launcher::agent {
namespace {

// Connections whose handshake has not come: how many, and for how long.
constexpr size_t kMaxPendingHandshakes = 64;
constexpr std::chrono::seconds kHandshakeTimeout(5);

}  // namespace

MembershipServer::MembershipServer(process::ListeningSocket socket, const MembershipRules& rules,
                                   Handshake own, absl::Duration liveness_timeout)
    : socket_(std::move(socket)),
      membership_(rules, Clock::now()),
      own_(std::move(own)),
      liveness_timeout_(liveness_timeout) {
  fcntl(socket_.fd.get(), F_SETFL, O_NONBLOCK);
}

void MembershipServer::add_connection(UniqueFd connection) {
  const process::SocketAddress peer = process::peer_address_of(connection.get());
  guests_.emplace(next_id_++, Guest{.channel = MessageChannel(std::move(connection)),
                                    .peer = peer.size() > 0 ? peer.host() : "",
                                    .last_received = Clock::now()});
}

void MembershipServer::end_run(const Failure& failure) {
  membership_.end_run(failure);
  distribute();
}

void MembershipServer::distribute() {
  for (const auto& [id, order] : membership_.advance(Clock::now())) {
    const auto guest = guests_.find(id);
    if (guest != guests_.end()) guest->second.channel.send(to_message(order));
  }
}

bool MembershipServer::is_over() const {
  return membership_.is_over() && std::ranges::all_of(guests_, [](const auto& entry) {
           return entry.second.host.empty() || !entry.second.channel.is_open();
         });
}

size_t MembershipServer::pending_handshakes() const {
  return static_cast<size_t>(
      std::ranges::count_if(guests_, [](const auto& entry) { return entry.second.host.empty(); }));
}

void MembershipServer::add_entries(std::vector<pollfd>& entries) {
  const bool accepts = pending_handshakes() < kMaxPendingHandshakes;
  entries.push_back({.fd = accepts ? socket_.fd.get() : -1, .events = POLLIN, .revents = 0});
  listed_.clear();
  for (const auto& [id, guest] : guests_) {
    listed_.push_back(id);
    entries.push_back(guest.channel.entry());
  }
}

void MembershipServer::react(absl::Span<const pollfd> entries) {
  const Clock::time_point now = Clock::now();
  for (size_t i = 0; i < listed_.size(); ++i) {
    Guest& guest = guests_.at(listed_[i]);
    if (entries[i + 1].revents & POLLIN) guest.last_received = now;
    const absl::Status ok = guest.channel.react(entries[i + 1]);
    receive(listed_[i], guest);
    if (!ok.ok()) lose(listed_[i], guest, ok.message());
  }
  for (auto& [id, guest] : guests_) {
    const auto silent = now - guest.last_received;
    if (!guest.channel.is_open()) continue;
    if (guest.host.empty() && silent > kHandshakeTimeout) guest.channel.close();
    if (!guest.host.empty() && silent > absl::ToChronoNanoseconds(liveness_timeout_)) {
      lose(id, guest, "it does not answer any more");
      guest.channel.close();
    }
  }
  std::erase_if(guests_, [](const auto& entry) { return !entry.second.channel.is_open(); });
  if (entries[0].revents & POLLIN) accept_all();
  distribute();
}

void MembershipServer::accept_all() {
  while (pending_handshakes() < kMaxPendingHandshakes) {
    UniqueFd fd(accept4(socket_.fd.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.is_open()) return;
    add_connection(std::move(fd));
  }
}

void MembershipServer::receive(int id, Guest& guest) {
  while (true) {
    absl::StatusOr<std::optional<Message>> message = guest.channel.next();
    if (!message.ok()) return lose(id, guest, message.status().message());
    if (!*message) return;
    handle(id, guest, **message);
  }
}

void MembershipServer::handle(int id, Guest& guest, const Message& message) {
  if (guest.is_dismissed) return;
  if (guest.host.empty()) return shake_hands(id, guest, message);
  const Failure failure = {
      .exit_code = static_cast<int>(message.number("exit_code", 0, 255).value_or(1)),
      .text = message.text("text")};
  if (message.verb == "ready") {
    if (const auto port = message.number("port", 1, 65535)) {
      membership_.ready(id, static_cast<uint16_t>(*port));
    }
  } else if (message.verb == "failed") {
    membership_.failed(id, failure);
  } else if (message.verb == "done") {
    membership_.done(id);
  } else if (message.verb == "leave") {
    membership_.lost(id, failure);
    guest.is_dismissed = true;
    guest.channel.close();
  } else if (message.verb == "alive") {
    guest.channel.send({.verb = "alive"});
  }
}

void MembershipServer::shake_hands(int id, Guest& guest, const Message& message) {
  absl::StatusOr<Handshake> theirs = to_handshake(message);
  if (absl::IsInvalidArgument(theirs.status())) return guest.channel.close();
  Handshake own = own_;
  own.clock = absl::Now();
  absl::Status fits = theirs.ok() ? check_handshake(*theirs, own) : theirs.status();
  if (fits.ok()) {
    if (theirs->machine.address.empty()) theirs->machine.address = guest.peer;
    fits = membership_.admit(id, theirs->machine);
  }
  if (!fits.ok()) {
    guest.is_dismissed = true;
    guest.channel.send({.verb = "refused", .fields = {{"text", std::string(fits.message())}}});
    return;
  }
  guest.host = theirs->machine.host;
  guest.channel.send({.verb = "welcome"});
}

void MembershipServer::lose(int id, const Guest& guest, absl::string_view why) {
  if (guest.host.empty() || guest.is_dismissed) return;
  membership_.lost(
      id, {.exit_code = 1, .text = absl::StrCat("machine ", guest.host, " was lost: ", why)});
}

std::optional<process::EventSource::Clock::time_point> MembershipServer::deadline() const {
  std::optional<Clock::time_point> first = membership_.deadline();
  for (const auto& [id, guest] : guests_) {
    // A moment later than the limit itself, so that it is surely passed.
    const auto patience = guest.host.empty() ? std::chrono::nanoseconds(kHandshakeTimeout)
                                             : absl::ToChronoNanoseconds(liveness_timeout_);
    first = process::earlier(first, guest.last_received + patience + std::chrono::milliseconds(1));
  }
  return first;
}

}  // namespace accelerate::launcher::agent
