/// Marks each line of a rank's output with the rank.
///
/// Output arrives in arbitrary pieces and leaves as whole lines, so lines of different ranks never
/// mix. A line ends at "\n", at "\r\n", or at a lone "\r" (a progress bar that redraws itself), and
/// keeps its ending. Other bytes pass through, whatever they are.
/// Threads: one user.
#pragma once

#include <cstddef>
#include <deque>
#include <string>

#include "absl/strings/string_view.h"

namespace accelerate::launch::supervise {

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

  /// The last non-empty lines, oldest first, without prefix and line end.
  const std::deque<std::string>& tail() const { return tail_; }

 private:
  void emit(absl::string_view ending, std::string& out);
  void grow(absl::string_view bytes, std::string& out);

  std::string prefix_;
  std::string line_;       // the unfinished line
  bool after_cr_ = false;  // a "\r" was seen and its line is still held: "\n" may follow
  std::deque<std::string> tail_;
};

}  // namespace accelerate::launch::supervise
