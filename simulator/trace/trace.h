/// What happened in a simulated run, for people to look at: slices of virtual time per rank and
/// stream, collectives that join ranks, messages, and memory by category.
///
/// Plain data; whoever runs the ranks records, simulator/report draws. Recording is cheap: names
/// are interned, nothing is formatted.
/// Units: nanoseconds of virtual time since the start of the run, bytes.
/// Threads: one at a time (the rank that holds the baton).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace accelerate::simulator {

/// What memory is held for. The order is that of tables and stacked charts.
enum class MemoryCategory : uint8_t {
  kParameters,
  kGradients,
  kOptimizerState,
  kActivations,
  kBuckets,
  kTemporaries,
};
inline constexpr size_t kNumMemoryCategories = 6;

/// "parameters", "gradients", "optimizer state", "activations", "buckets", "temporaries".
const char* to_string(MemoryCategory category);

enum class SliceKind : uint8_t {
  kKernel,      ///< an operator on a device stream
  kCopy,        ///< between host and device, or devices of one rank
  kCollective,  ///< a member's part in a collective
  kMessage,     ///< a member's part in a point-to-point message
  kHost,        ///< the host: waiting, sleeping
};

struct Slice {
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  int32_t rank = 0;
  int32_t stream = 0;  ///< the device's stream; kHostStream for the host's own track
  uint32_t name = 0;   ///< of Trace::names
  SliceKind kind = SliceKind::kKernel;
  int64_t operation = -1;  ///< kCollective, kMessage: index into Trace::operations
};
inline constexpr int32_t kHostStream = -1;
inline constexpr size_t kNumSliceKinds = 5;

/// "kernel", "copy", "collective", "message", "host".
const char* to_string(SliceKind kind);

/// A collective or message as a whole. Its members' slices carry its index.
struct TraceOperation {
  uint32_t name = 0;       ///< "ALLREDUCE", "SEND"
  uint32_t group = 0;      ///< the process group's name
  uint32_t algorithm = 0;  ///< "ring"; empty for a message
  int64_t bytes = 0;
  /// Global ranks. A message: sender, receiver.
  std::vector<int> ranks;
};

/// The bytes of a device after one of its categories changed.
struct MemorySample {
  int64_t at_ns = 0;
  int32_t rank = 0;
  std::array<int64_t, kNumMemoryCategories> bytes = {};
};

/// What one rank's device and host did over the whole run.
struct RankSummary {
  int64_t end_ns = 0;            ///< when the rank was done, its streams included
  int64_t compute_ns = 0;        ///< busy with kernels and copies
  int64_t communication_ns = 0;  ///< with at least one collective or message under way
  int64_t exposed_ns = 0;        ///< of those, with no kernel running meanwhile
  int64_t memory_peak = 0;
  std::array<int64_t, kNumMemoryCategories> at_peak = {};
  double flops = 0;  ///< of its operators
};

/// One operator over the whole run and all ranks.
struct OperatorSummary {
  uint32_t name = 0;
  int64_t calls = 0;
  int64_t total_ns = 0;
  double flops = 0;
  double bytes = 0;
};

struct Trace {
  std::string topology;  ///< ClusterSpec::to_string()
  uint64_t seed = 0;
  std::string repeat_command;
  int world_size = 0;
  int ranks_per_node = 1;
  std::string device;              ///< the kind's name; empty on CPU tensors
  int64_t memory_capacity = 0;     ///< of each device; 0: none modelled
  std::vector<std::string> names;  ///< 0 is ""
  /// In the order of recording; of one rank and stream also in order of time.
  std::vector<Slice> slices;
  std::vector<TraceOperation> operations;
  /// By rank, then by time. Of one instant there may be two: the highest, then the last.
  std::vector<MemorySample> memory;
  /// Recording stopped here because of Recorder's limit; summaries go on.
  int64_t dropped_slices = 0;
  /// Filled at the end of the run. Bytes sent from rank to rank, row by sender; empty if nothing
  /// was. A collective counts what its algorithm moves, evenly over the ring of its members.
  std::vector<RankSummary> ranks;
  std::vector<OperatorSummary> operators;
  std::vector<double> communication;
  /// When each training step ended; empty if nobody told the recorder.
  std::vector<int64_t> step_ends_ns;
};

/// When the last rank was done.
int64_t elapsed_ns(const Trace& trace);

/// How long the steps took. Of more than one, all but `first_ns` leave the first one out, which
/// also sets up optimizer state and buckets.
struct StepTimes {
  int64_t steps = 0;
  int64_t first_ns = 0;
  int64_t shortest_ns = 0;
  int64_t median_ns = 0;  ///< of an even number, the shorter of the two in the middle
  int64_t longest_ns = 0;
};

/// Nothing if the trace has no steps.
std::optional<StepTimes> step_times(const Trace& trace);

}  // namespace accelerate::simulator
