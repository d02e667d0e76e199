/// One of a rank's two output pipes: read, kept in a file, cut into marked lines, passed on.
/// Threads: one user.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "accelerate/platform/unique_fd.h"
#include "launch/supervise/console.h"

namespace accelerate::launcher::supervise {

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

/// The file that keeps what a rank wrote to one of its streams. The launcher writes it rather than
/// the rank: a full disk then costs the rest of the log and not the training, and the last lines
/// are at hand when the rank fails.
class RankLog {
 public:
  /// No file: takes everything and keeps nothing.
  RankLog() = default;

  /// Makes the file, empty, and the folders above it.
  /// Errors: DataLoss if the disk is full, Internal for any other reason; both name the path and
  ///         what the system said.
  static absl::StatusOr<RankLog> open(const std::string& path);

  bool is_open() const { return file_.is_open(); }
  const std::string& path() const { return path_; }

  /// Appends. Errors: DataLoss naming the file; returned once, and the file takes no more.
  absl::Status append(absl::string_view bytes);

 private:
  std::string path_;
  UniqueFd file_;
};

class RankOutput {
 public:
  /// `pipe` is the reading end, non-blocking. Lines go to `sink`, or nowhere if it is null; what
  /// goes wrong with the log is said on `console`. Both must outlive this object.
  RankOutput(UniqueFd pipe, std::string prefix, OutputQueue* sink, RankLog log, Console& console);

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
  const std::string& log_path() const { return log_.path(); }

 private:
  void pass_on(absl::string_view bytes);
  void close();
  std::string& lines();

  UniqueFd pipe_;
  LinePrefixer prefixer_;
  OutputQueue* sink_;
  std::string dropped_;  // the lines of an output without a sink
  RankLog log_;
  Console* console_;
};

}  // namespace accelerate::launcher::supervise
