/// The launcher's own standard output and error, and its messages there.
/// Threads: the main thread.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "launch/process/event_source.h"
#include "launch/process/terminal_colour.h"

namespace accelerate::launcher::supervise {

/// Bytes on their way to the launcher's own standard output or error.
///
/// A slow reader must not keep the launcher from answering signals, and the descriptor may be
/// shared with other processes, so it is not made non-blocking. Instead bytes wait here until poll
/// reports room, and leave in pieces that fit. Threads: one user.
class OutputQueue {
 public:
  /// Above this, producers should wait.
  static constexpr size_t kFullBytes = 256 * 1024;

  /// `fd` stays open and is not owned.
  explicit OutputQueue(int fd) : fd_(fd), has_colour_(process::shows_colour(fd)) {}

  int fd() const { return fd_; }
  /// Whether what is appended may have escape codes for colours.
  bool has_colour() const { return has_colour_; }
  bool empty() const { return sent_ == pending_.size(); }
  bool is_full() const { return pending_.size() - sent_ >= kFullBytes; }

  /// Where to append. Once a write failed, what is appended is dropped by the next `write_some`.
  std::string& pending() { return pending_; }

  /// Call when poll reported room or an error: writes as much as surely does not block.
  /// Errors: Unavailable if the reader is gone; DataLoss for any other reason. Each is
  ///         returned once, and everything pending or coming is dropped.
  absl::Status write_some();

 private:
  const int fd_;
  const bool has_colour_;
  std::string pending_;
  size_t sent_ = 0;  // bytes at the front of pending_ that are gone already
  bool failed_ = false;
};

class Console final : public process::EventSource {
 public:
  Console();

  OutputQueue& out() { return out_; }
  OutputQueue& err() { return err_; }

  /// `accelerate launch: TEXT` as a line on standard error.
  void print(absl::string_view text);

  /// The same for what ended the run: in red where standard error shows colours.
  void print_error(absl::string_view text);

  /// As `print`, but only the first time for each `matter`.
  void print_once(absl::string_view matter, absl::string_view text);

  bool empty() const { return out_.empty() && err_.empty(); }

  /// The name of the stream whose reader is gone, if one is.
  const std::optional<std::string>& closed() const { return closed_; }

  void add_entries(std::vector<pollfd>& entries) override;
  void react(absl::Span<const pollfd> entries) override;

 private:
  void write(OutputQueue& queue, absl::string_view name, OutputQueue& other);

  OutputQueue out_;
  OutputQueue err_;
  std::optional<std::string> closed_;
  std::set<std::string, std::less<>> said_;
};

}  // namespace accelerate::launcher::supervise
