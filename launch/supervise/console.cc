#include "launch/supervise/console.h"

#include <unistd.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace accelerate::launch::supervise {
namespace {

constexpr char kSpeaker[] = "accelerate launch: ";

}  // namespace

Console::Console() : out_(STDOUT_FILENO), err_(STDERR_FILENO) {}

void Console::say(absl::string_view text) {
  absl::StrAppend(&err_.pending(), kSpeaker, text, "\n");
}

void Console::say_once(absl::string_view matter, absl::string_view text) {
  if (said_.emplace(matter).second) say(text);
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

}  // namespace accelerate::launch::supervise
