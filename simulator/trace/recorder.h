/// Writes down what happens in a simulated run, and sums it up as a Trace.
///
/// Called for every operator, collective and allocation: nothing is formatted, nothing is looked up
/// but names in intern(). Callers keep the ids of the names they use again and again.
/// Memory: bounded by RecorderOptions. Beyond a limit pictures get coarser or stop, sums do not.
/// Units: nanoseconds of virtual time, bytes.
/// Errors: a rank, name or time out of range is a bug of the caller and ends the program.
/// Threads: one at a time (the rank that holds the baton).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/strings/string_view.h"
#include "simulator/trace/busy_time.h"
#include "simulator/trace/memory_curve.h"
#include "simulator/trace/trace.h"

namespace accelerate::simulator {

struct RecorderOptions {
  int world_size = 1;
  int ranks_per_node = 1;
  /// Slices beyond are counted in Trace::dropped_slices, and no further operation is kept.
  int64_t max_slices = 2'000'000;
  /// Of all ranks together; each gets its part, and at least 256.
  int64_t max_memory_samples = 1'000'000;
  /// Per rank; see BusyTime.
  size_t max_open_intervals = 4096;
};

/// What a trace says about the run itself. Meanings: Trace.
struct RunDescription {
  std::string topology;
  uint64_t seed = 0;
  std::string repeat_command;
  std::string device;
  int64_t memory_capacity = 0;
};

class Recorder {
 public:
  explicit Recorder(RecorderOptions options);

  /// The number of a name; equal names have equal numbers, "" has 0.
  uint32_t intern(absl::string_view name);

  /// A part of a rank's time. Those of one rank and stream come in order.
  void slice(const Slice& slice);

  /// Returns the number for Slice::operation; -1 if it is not kept.
  int64_t operation(TraceOperation operation);

  /// A rank's device holds `delta` bytes more, or less, in a category.
  void memory(int rank, int64_t at_ns, MemoryCategory category, int64_t delta);

  /// One call of an operator.
  void op_cost(int rank, uint32_t name, int64_t ns, double flops, double bytes);

  /// Bytes that went from a rank to another.
  void traffic(int source, int target, double bytes);

  /// A training step ended. One rank tells, by convention 0.
  void step(int64_t at_ns);

  /// A rank is done; its slices may last longer.
  void end_rank(int rank, int64_t at_ns);

  /// The whole run. The recorder is empty afterwards and must not be used again.
  Trace finish(RunDescription run);

 private:
  struct RankState {
    RankState(int rank, size_t max_open_intervals, size_t max_samples)
        : busy(max_open_intervals), memory(rank, max_samples) {}

    BusyTime busy;
    MemoryCurve memory;
    int64_t end_ns = 0;
    double flops = 0;
  };

  // Finds a name without making a string of it.
  struct NameHash {
    using is_transparent = void;
    size_t operator()(std::string_view name) const { return std::hash<std::string_view>()(name); }
  };

  RankState& state_of(int rank);

  RecorderOptions options_;
  Trace trace_;
  // Of names. Not Abseil's map: GCC's -fsanitize=undefined cannot compile it.
  std::unordered_map<std::string, uint32_t, NameHash, std::equal_to<>> numbers_;
  std::vector<RankState> ranks_;
  std::vector<OperatorSummary> operators_;  // by name
};

}  // namespace accelerate::simulator
