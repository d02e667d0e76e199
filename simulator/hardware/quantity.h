/// Numbers with units, as people write them: "80GiB", "3.35TB/s", "200Gbps", "5us", "989TFLOPS".
///
/// A unit is required except for bytes, because a plain number would be ambiguous. Decimal
/// fractions are read exactly: 3.35TB/s is 3350000000000 bytes per second.
/// Threads: pure functions.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace accelerate::simulator {

enum class Dimension {
  kBytes,           ///< whole bytes; plain, B, kB, MB, GB, TB, KiB, MiB, GiB, TiB
  kBytesPerSecond,  ///< B/s, kB/s, MB/s, GB/s, TB/s; in bits: Mbps, Gbps, Tbps
  kNanoseconds,     ///< whole nanoseconds; ns, us, ms, s
  kFlopsPerSecond,  ///< GFLOPS, TFLOPS, PFLOPS
};

/// A value, or an error: `expected` at `position` in the text.
struct Quantity {
  double value = 0;
  size_t position = 0;
  /// The text that was expected at `position`; empty if there is no error.
  std::string expected;

  bool ok() const { return expected.empty(); }
};

/// Accepts values above zero, or zero where may_be_zero(), and at most max_quantity().
Quantity parse_quantity(absl::string_view text, Dimension dimension);

double max_quantity(Dimension dimension);
/// Whether zero is a value. It is one of times, which are added; rates and sizes divide.
bool may_be_zero(Dimension dimension);

/// Text that parse_quantity() reads as exactly this value.
std::string format_quantity(double value, Dimension dimension);

}  // namespace accelerate::simulator
