/// A synthetic trace that looks like data-parallel training of a transformer, for tests of reports.
///
/// The trace has forward and backward kernels per layer, all-reduces of gradient buckets on a
/// separate stream, an input copy per step, messages that pass a value from rank to rank, a memory
/// curve, and one rank that is slower than the others. The numbers are plausible for an H100, not
/// measured.
#pragma once

#include <cstdint>

#include "simulator/trace/trace.h"

namespace accelerate::simulator {

struct SampleOptions {
  int ranks = 8;
  int ranks_per_node = 8;
  int steps = 5;
  int layers = 12;
  uint64_t seed = 7;
};

/// Equal options give equal traces.
Trace make_sample_trace(const SampleOptions& options);

}  // namespace accelerate::simulator
