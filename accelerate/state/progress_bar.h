/// One line on the terminal that shows how far a loop has come:
///
///     epoch 3:  45%|█████     | 10/22 [00:01<00:01, 8.1 it/s, loss 0.123]
///
/// It is drawn on stderr, by the first rank of each node. It is redrawn at most ten times a second
/// of the Runtime's clock. A last drawing and a line break come with close() or destruction. Text
/// is cut to the terminal's width: COLUMNS if set, else what the terminal says, else 80.
/// If stderr is not a terminal, a loop that takes longer than kPlainInterval writes a line without
/// a bar at most once in that time, and one at its end; a shorter loop writes nothing.
///
/// Ownership: the Runtime must outlive the bar.
/// Threads:   the rank's thread only.
/// Mirrors:   accelerate utils/tqdm.py, tqdm (here ProgressBar).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {

struct ProgressBarOptions {
  /// How many steps there will be. Absent: only what is done is shown, without bar and estimate.
  std::optional<int64_t> total = std::nullopt;
  /// Stands before the bar.
  std::string description = {};
  /// Steps are bytes: "1.20 GB/3.00 GB [00:01<00:02, 1.10 GB/s]", in powers of 1000.
  bool counts_bytes = false;
  /// Off: every rank draws one, not only the first of its node.
  bool main_process_only = true;
};

class ProgressBar {
 public:
  /// The shortest time between two lines where stderr is not a terminal.
  static constexpr absl::Duration kPlainInterval = absl::Seconds(5);

  /// Draws the bar at its beginning, on a terminal.
  explicit ProgressBar(Runtime& runtime, ProgressBarOptions options = {});
  /// Closes. A failure to write is ignored.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Counts `steps` more. A `postfix` that is not empty replaces what stands after the rate.
  void advance(int64_t steps = 1, std::string_view postfix = {});

  /// Writes a line to stdout, on rank 0 and with or without a terminal; the bar moves below it.
  void print(std::string_view line);

  /// Draws the final state and ends the line. Later calls do nothing.
  void close();

  /// The steps counted so far, whether anything is drawn or not.
  int64_t count() const { return count_; }

 private:
  bool is_due(absl::Time now);
  void draw(absl::Time now);
  int64_t twentieths(int64_t count) const;

  Runtime& runtime_;
  ProgressBarOptions options_;
  const bool is_terminal_;
  bool open_;  // draws, and is not closed
  int64_t count_ = 0;
  std::string postfix_;
  absl::Time started_;
  absl::Time last_drawn_;
  int64_t drawn_count_ = 0;
};

}  // namespace accelerate
