#include "launch/supervise/output_queue.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace accelerate::launch::supervise {
namespace {

bool has_room(int fd) {
  pollfd entry = {.fd = fd, .events = POLLOUT, .revents = 0};
  return poll(&entry, 1, 0) == 1;
}

}  // namespace

absl::Status OutputQueue::write_some() {
  while (!failed_ && !empty() && has_room(fd_)) {
    // A pipe with room has room for PIPE_BUF bytes at least.
    const ssize_t written =
        write(fd_, pending_.data() + sent_, std::min<size_t>(pending_.size() - sent_, PIPE_BUF));
    if (written >= 0) {
      sent_ += static_cast<size_t>(written);
      continue;
    }
    // EAGAIN: the descriptor is shared, non-blocking, and another process used up the room.
    if (errno == EAGAIN || errno == EINTR) break;
    const int error = errno;
    failed_ = true;
    pending_.clear();
    sent_ = 0;
    if (error == EPIPE) return absl::UnavailableError(std::strerror(error));
    return absl::DataLossError(std::strerror(error));
  }
  if (failed_ || empty()) {
    pending_.clear();
    sent_ = 0;
  } else if (sent_ >= kFullBytes) {
    pending_.erase(0, sent_);
    sent_ = 0;
  }
  return absl::OkStatus();
}

}  // namespace accelerate::launch::supervise
