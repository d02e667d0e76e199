#include "launch/supervise/output.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "accelerate/platform/child.h"

namespace accelerate::launcher::supervise {
namespace {

constexpr char kSpeaker[] = "accelerate launch: ";

bool has_room(int fd) {
  pollfd entry = {.fd = fd, .events = POLLOUT, .revents = 0};
  return poll(&entry, 1, 0) == 1;
}

constexpr size_t kReadBytes = 64 * 1024;

std::string log_error(const std::string& path, int cause) {
  return absl::StrCat("cannot write the log ", path, ": ", std::strerror(cause));
}

// A pipe holds 64 KiB unless someone enlarged it, at most to 1 MiB without privileges. The bound
// only matters if a writer could not be killed and never stops.
constexpr int kFinalReads = 16;

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

absl::StatusOr<UniqueFd> open_log(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  UniqueFd log(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  const int cause = error ? error.value() : errno;
  if (log.is_open()) return log;
  const std::string text = log_error(path, cause);
  if (cause == ENOSPC || cause == EDQUOT) return absl::DataLossError(text);
  return absl::InternalError(text);
}

RankOutput::RankOutput(UniqueFd pipe, std::string prefix, OutputQueue* sink, UniqueFd log,
                       std::string log_path, Console& console)
    : pipe_(std::move(pipe)),
      prefixer_(std::move(prefix)),
      sink_(sink),
      log_(std::move(log)),
      log_path_(std::move(log_path)),
      console_(&console) {}

void RankOutput::read_some() {
  char buffer[kReadBytes];
  const ssize_t size = read(pipe_.get(), buffer, sizeof(buffer));
  if (size > 0) {
    pass_on(absl::string_view(buffer, static_cast<size_t>(size)));
  } else if (size == 0 || (errno != EAGAIN && errno != EINTR)) {
    close();
  }
}

void RankOutput::finish() {
  for (int i = 0; i < kFinalReads && is_open(); ++i) read_some();
  if (is_open()) close();
}

void RankOutput::buffer_from(std::string beginning) {
  if (sink_ != nullptr) prefixer_.buffer_from(std::move(beginning));
}

void RankOutput::pass_on(absl::string_view bytes) {
  if (log_.is_open() && !write_all(log_.get(), bytes)) {
    const std::string why = log_error(log_path_, errno);
    console_->print_once("logs", absl::StrCat(why, "; the run goes on without"));
    log_.reset();
  }
  prefixer_.append(bytes, lines());
}

void RankOutput::close() {
  pipe_.reset();
  prefixer_.finish(lines());
}

std::string& RankOutput::lines() {
  if (sink_ != nullptr) return sink_->pending();
  dropped_.clear();
  return dropped_;
}

void LinePrefixer::append(absl::string_view bytes, std::string& out) {
  while (!bytes.empty()) {
    if (after_cr_) {
      after_cr_ = false;
      if (bytes[0] == '\n') {
        emit("\r\n", out);
        bytes.remove_prefix(1);
        continue;
      }
      emit("\r", out);
    }
    const size_t end = bytes.find_first_of("\r\n");
    grow(bytes.substr(0, end), out);
    if (end == absl::string_view::npos) return;
    if (bytes[end] == '\n') {
      emit("\n", out);
    } else {
      after_cr_ = true;
    }
    bytes.remove_prefix(end + 1);
  }
}

void LinePrefixer::finish(std::string& out) {
  if (after_cr_ || !line_.empty()) emit(after_cr_ ? "\r\n" : "\n", out);
  after_cr_ = false;
}

void LinePrefixer::emit(absl::string_view ending, std::string& out) {
  // A redraw often starts with its "\r"; a prefix for the nothing before it would only flicker.
  if (line_.empty() && ending == "\r") {
    out += '\r';
    return;
  }
  if (holds() || (!buffer_from_.empty() && absl::StartsWith(line_, buffer_from_))) {
    held_.push_back(absl::StrCat(line_, ending));
  } else {
    absl::StrAppend(&out, prefix_, line_, ending);
  }
  if (!line_.empty()) {
    if (tail_.size() == kTailLines) tail_.pop_front();
    tail_.push_back(line_.substr(0, kTailLineBytes));
  }
  line_.clear();
}

std::vector<std::string> LinePrefixer::release() {
  buffer_from_.clear();
  return std::exchange(held_, {});
}

void LinePrefixer::grow(absl::string_view bytes, std::string& out) {
  while (line_.size() + bytes.size() > kMaxLineBytes) {
    const size_t room = kMaxLineBytes - line_.size();
    absl::StrAppend(&line_, bytes.substr(0, room));
    bytes.remove_prefix(room);
    emit("\n", out);
  }
  absl::StrAppend(&line_, bytes);
}

}  // namespace accelerate::launcher::supervise
