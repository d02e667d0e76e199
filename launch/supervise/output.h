/// Output on its way: the launcher's own standard output and error, its messages there, and a
/// rank's output pipes, each read, kept in a file, cut into marked lines, passed on. Threads: the
/// main thread.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "accelerate/platform/unique_fd.h"
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

/// Marks each line of a rank's output with the rank.
///
/// Output arrives in arbitrary pieces and leaves as whole lines, so lines of different ranks never
/// mix. A line ends at "\n", at "\r\n", or at a lone "\r" (a progress bar that redraws itself), and
/// keeps its ending. All other bytes pass through unchanged.
class LinePrefixer {
 public:
  /// A longer line is written in pieces of this size, each a line of its own.
  static constexpr size_t kMaxLineBytes = 64 * 1024;
  /// How many last lines are remembered, and how much of each.
  static constexpr size_t kTailLines = 10;
  static constexpr size_t kTailLineBytes = 1024;

  explicit LinePrefixer(std::string prefix) : prefix_(std::move(prefix)) {}

  /// Takes the next bytes and appends to `out` the lines that they complete.
  void append(absl::string_view bytes, std::string& out);

  /// Takes the end of the output: appends an unfinished last line, with a newline.
  void finish(std::string& out);

  /// From the next line that begins with `beginning` on, lines are kept instead of passed on.
  void buffer_from(std::string beginning) { buffer_from_ = std::move(beginning); }
  bool holds() const { return !held_.empty(); }
  /// The lines that were kept, without prefix and with their ends. Further lines are passed on.
  std::vector<std::string> release();

  /// The last non-empty lines, oldest first, without prefix and line end.
  const std::deque<std::string>& tail() const { return tail_; }

 private:
  void emit(absl::string_view ending, std::string& out);
  void grow(absl::string_view bytes, std::string& out);

  std::string prefix_;
  std::string line_;         // the unfinished line
  bool after_cr_ = false;    // a "\r" was seen and its line is still held: "\n" may follow
  std::string buffer_from_;  // empty: nothing is kept
  std::vector<std::string> held_;
  std::deque<std::string> tail_;
};

/// Makes the file that keeps what a rank writes to one of its streams, empty, and the folders above
/// it. The launcher writes it rather than the rank: a full disk then costs the rest of the log and
/// not the training, and the last lines are at hand when the rank fails.
/// Errors: DataLoss if the disk is full, Internal for any other reason; both name the path and what
///         the system said.
absl::StatusOr<UniqueFd> open_log(const std::string& path);

/// One of a rank's two output pipes.
class RankOutput {
 public:
  /// `pipe` is the reading end, non-blocking. Lines go to `sink`, or nowhere if it is null, and all
  /// bytes to `log`, the file at `log_path`, if it is open; what goes wrong with it is said on
  /// `console`. Sink and console must outlive this object.
  RankOutput(UniqueFd pipe, std::string prefix, OutputQueue* sink, UniqueFd log,
             std::string log_path, Console& console);

  int fd() const { return pipe_.get(); }
  bool is_open() const { return pipe_.is_open(); }

  /// False while the sink is full: the rank then waits in its own write, as it would at a terminal.
  bool wants_data() const { return is_open() && !(sink_ != nullptr && sink_->is_full()); }

  /// Passes on the next piece, if there is one. Closes at the end of the output.
  void read_some();

  /// Passes on what the pipe holds, without waiting for more, and closes.
  void finish();

  /// As LinePrefixer::buffer_from, where lines go to a console.
  void buffer_from(std::string beginning);
  bool holds() const { return prefixer_.holds(); }
  std::vector<std::string> release() { return prefixer_.release(); }

  /// The last lines seen.
  const std::deque<std::string>& tail() const { return prefixer_.tail(); }

  /// Where the whole output is; empty if nowhere.
  const std::string& log_path() const { return log_path_; }

 private:
  void pass_on(absl::string_view bytes);
  void close();
  std::string& lines();

  UniqueFd pipe_;
  LinePrefixer prefixer_;
  OutputQueue* sink_;
  std::string dropped_;  // the lines of an output without a sink
  UniqueFd log_;
  std::string log_path_;
  Console* console_;
};

}  // namespace accelerate::launcher::supervise
