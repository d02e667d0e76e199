/// The duration of one kernel as text, term by term: `accelerate simulate --explain-op`.
///
///   mm 12288x4096x4096:bf16             [m, k] x [k, n], as m x n x k
///   bmm 32x1024x1024x128:bf16           32 of them
///   grouped_mm 8x4096x14336x4096:bf16   one kernel for the rows of 8 experts, 4,096 each
///   attention 2x32x4096x128:bf16 causal backward
///                                       batch, heads, length, size of a head; "mask", "dropout"
///   read 64MiB, copy 64MiB, add 64MiB   kernels that write none, half, a third of what they move
///
/// Threads: pure functions.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "simulator/hardware/cluster_spec.h"
#include "simulator/hardware/kernel_time.h"

namespace accelerate::simulator {

/// Reads an operation as above. Errors: InvalidArgument that shows the text and says what it may
/// be.
absl::StatusOr<KernelWork> parse_operation(absl::string_view text);

/// Its terms under `ideal`, and under `measured` where a table of the device is known; lines.
/// Errors: those of parse_operation.
absl::StatusOr<std::string> explain_operation(absl::string_view text, const DeviceModel& device);

// ---- The text of explanations, of collectives as well (network/explain_collective.h).

/// Four digits and a unit: the first of `units`, or a later one for each `step` of the value.
std::string scaled_text(double value, absl::Span<const char* const> units, double step);

/// "66.8 us".
std::string time_text(double ns);

/// Lines in two columns below headings.
class Explanation {
 public:
  /// `width`: that of the first column.
  explicit Explanation(int width) : width_(width) {}

  void head(absl::string_view line);
  void line(absl::string_view term, absl::string_view value);
  std::string finish() { return std::move(text_); }

 private:
  const int width_;
  std::string text_;
};

}  // namespace accelerate::simulator
