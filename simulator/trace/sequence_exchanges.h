/// How long ranks exchange parts of sequences in a training step: the hops of a ring along the axis
/// "cp", and what attention along "sp" trades.
///
/// Units: nanoseconds of virtual time.
/// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "simulator/trace/trace.h"

namespace accelerate::simulator {

/// The all-to-alls in the groups along an axis.
struct SequenceExchanges {
  std::string axis;
  /// Means over the ranks whose slices were recorded: of the time in an exchange, or waiting for
  /// its members, and of the part of it without a kernel on the rank's devices.
  int64_t exchange_ns = 0;
  int64_t exposed_ns = 0;

  bool operator==(const SequenceExchanges&) const = default;
};

/// Those of the median step, by axis; empty without such exchanges, and as step_shares.h says.
std::vector<SequenceExchanges> sequence_exchanges(const Trace& trace);

}  // namespace accelerate::simulator
