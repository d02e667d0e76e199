#include "launch/supervise/console.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace accelerate::launcher::supervise {
namespace {

constexpr char kSpeaker[] = "accelerate launch: ";

bool has_room(int fd) {
  pollfd entry = {.fd = fd, .events = POLLOUT, .revents = 0};
  return poll(&entry, 1, 0) == 1;
}

}  // namespace

Console::Console() : out_(STDOUT_FILENO), err_(STDERR_FILENO) {}

void Console::print(absl::string_view text) {
  absl::StrAppend(&err_.pending(), kSpeaker, text, "\n");
}

void Console::print_error(absl::string_view text) {
  absl::StrAppend(&err_.pending(),
                  process::as_error(absl::StrCat(kSpeaker, text), err_.has_colour()), "\n");
}

void Console::print_once(absl::string_view matter, absl::string_view text) {
  if (said_.emplace(matter).second) print(text);
}

void Console::add_entries(std::vector<pollfd>& entries) {
  for (OutputQueue* queue : {&out_, &err_}) {
    entries.push_back({.fd = queue->empty() ? -1 : queue->fd(), .events = POLLOUT, .revents = 0});
  }
}

void Console::react(absl::Span<const pollfd> entries) {
  if (entries[0].revents != 0) write(out_, "standard output", err_);
  if (entries[1].revents != 0) write(err_, "standard error", out_);
}

void Console::write(OutputQueue& queue, absl::string_view name, OutputQueue& other) {
  const absl::Status written = queue.write_some();
  if (written.ok()) return;
  if (absl::IsUnavailable(written)) {
    if (!closed_) closed_ = std::string(name);
    return;
  }
  // A full disk under the log must not end the training.
  absl::StrAppend(&other.pending(), kSpeaker, "cannot write to ", name, " (", written.message(),
                  "); the rest of it is lost\n");
}

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

}  // namespace accelerate::launcher::supervise
