#include "launch/agent/message_channel.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace accelerate::launch::agent {
namespace {

constexpr size_t kMaxPendingBytes = 1 << 20;

absl::Status gone(const char* why) { return absl::UnavailableError(why); }

}  // namespace

MessageChannel::MessageChannel(UniqueFd fd) : fd_(std::move(fd)) {
  fcntl(fd_.get(), F_SETFL, O_NONBLOCK);
  const int on = 1;
  setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

void MessageChannel::send(const Message& message) {
  if (!is_open()) return;
  out_ += encode(message);
  if (out_.size() > kMaxPendingBytes) close();
}

pollfd MessageChannel::entry() const {
  const int events = out_.empty() ? POLLIN : POLLIN | POLLOUT;
  return {.fd = fd_.get(), .events = static_cast<short>(events), .revents = 0};
}

absl::Status MessageChannel::react(const pollfd& entry) {
  absl::Status ok;
  // What the other end said last counts even if it is gone now.
  if (is_open() && (entry.revents & (POLLIN | POLLHUP | POLLERR))) ok = read_some();
  if (ok.ok() && is_open() && (entry.revents & POLLOUT)) ok = write_some();
  if (!ok.ok()) close();
  return ok;
}

absl::Status MessageChannel::read_some() {
  char buffer[4096];
  const ssize_t size = recv(fd_.get(), buffer, sizeof(buffer), 0);
  if (size > 0) return in_.append(absl::string_view(buffer, static_cast<size_t>(size)));
  if (size == 0) return gone("connection closed");
  if (errno == EAGAIN || errno == EINTR) return absl::OkStatus();
  return gone(std::strerror(errno));
}

absl::Status MessageChannel::write_some() {
  const ssize_t size = ::send(fd_.get(), out_.data(), out_.size(), MSG_NOSIGNAL);
  if (size >= 0) {
    out_.erase(0, static_cast<size_t>(size));
    return absl::OkStatus();
  }
  if (errno == EAGAIN || errno == EINTR) return absl::OkStatus();
  return gone(std::strerror(errno));
}

absl::StatusOr<std::optional<Message>> MessageChannel::next() {
  const std::optional<std::string> line = in_.next();
  if (!line) return std::optional<Message>();
  absl::StatusOr<Message> message = decode(*line);
  if (!message.ok()) {
    close();
    return message.status();
  }
  return std::optional<Message>(*std::move(message));
}

}  // namespace accelerate::launch::agent
