/// The record of a simulated run, for people to look at: slices of virtual time per rank and
/// stream, collectives that join ranks, messages, and memory by category.
///
/// Plain data: the Recorder fills it, simulator/report draws it. Recording is cheap, because names
/// are interned and nothing is formatted.
/// Units: nanoseconds of virtual time since the start of the run, bytes.
/// Threads: one at a time (the rank that holds the baton).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/base/enum_text.h"

namespace accelerate::simulator {

/// The purposes that memory is held for, in the order of tables and stacked charts.
enum class MemoryCategory : uint8_t {
  kParameters,
  kGatheredParameters,  ///< of sharded models, while they are used
  kGradients,
  kOptimizerState,
  kActivations,
  kBuckets,
  kTemporaries,
};
inline constexpr size_t kNumMemoryCategories = 7;

enum class SliceKind : uint8_t {
  kKernel,      ///< an operator on a device stream
  kCopy,        ///< a copy between host and device, or between devices of one rank
  kCollective,  ///< a member's part in a collective
  kMessage,     ///< a member's part in a point-to-point message
  kHost,        ///< time in which the host waits for a device, a collective or the store, or sleeps
  kWait,        ///< a member's wait, from its arrival until its collective or message starts
  kDisk,        ///< the disk's work for a file of the rank; on kHostWaitStream, the wait for it
};

/// What a slice's start waited for last.
enum class StartedBy : uint8_t {
  kUnknown,  ///< whatever ends where the slice starts
  kStream,   ///< the work before it on its stream
  kEvent,    ///< work of another stream that its stream waited for
  kHost,     ///< the host, which issued it then
  kMembers,  ///< the last member of its collective or message
};

struct Slice {
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  int32_t rank = 0;
  int32_t stream = 0;  ///< the device's stream; a constant below for other tracks
  uint32_t name = 0;   ///< index into Trace::names
  SliceKind kind = SliceKind::kKernel;
  uint8_t device = 0;  ///< the number of the stream's device among the rank's
  StartedBy started_by = StartedBy::kUnknown;
  int64_t operation = -1;  ///< kCollective, kMessage, kWait: index into Trace::operations
};
inline constexpr int32_t kHostStream = -1;
/// Beyond the number of any stream, so that the disk's track comes behind them.
inline constexpr int32_t kDiskStream = 1 << 20;
/// The waits of the host: what it waits for may be on its other track, as a collective on CPU
/// tensors.
inline constexpr int32_t kHostWaitStream = kDiskStream + 2;
inline constexpr size_t kNumSliceKinds = 7;

/// A collective or message as a whole. Its members' slices carry its index.
struct TraceOperation {
  uint32_t name = 0;       ///< "ALLREDUCE", "SEND"
  uint32_t group = 0;      ///< the process group's name
  uint32_t algorithm = 0;  ///< "ring"; empty for a message
  int64_t bytes = 0;
  /// Global ranks. A message: sender, receiver.
  std::vector<int> ranks;
  /// The members that were ready first and last, as global ranks, and the time between the two. Of
  /// several, the one that comes first in `ranks`. -1: unknown.
  int32_t first_rank = -1;
  int32_t last_rank = -1;
  int64_t spread_ns = 0;
};

/// The bytes that a device holds after one of its categories changed.
struct MemorySample {
  int64_t at_ns = 0;
  int32_t rank = 0;
  uint8_t device = 0;  ///< as in Slice
  std::array<int64_t, kNumMemoryCategories> bytes = {};
};

/// The sums of one rank's devices and host over the whole run.
struct RankSummary {
  int64_t end_ns = 0;            ///< the end of the rank's program and of its streams
  int64_t compute_ns = 0;        ///< busy with kernels and copies
  int64_t communication_ns = 0;  ///< in a collective or message, or waiting for its members
  int64_t exposed_ns = 0;        ///< the part of communication_ns in which no kernel runs
  int64_t memory_peak = 0;       ///< the highest of its devices; at_peak is of the same device
  std::array<int64_t, kNumMemoryCategories> at_peak = {};
  double flops = 0;  ///< the sum over its operators
  /// What the driver shows at most of one of its devices: what the allocator reserved, the context
  /// and the buffers of communicators. 0: not modelled.
  int64_t driver_peak = 0;
  int64_t allocation_retries = 0;  ///< of its devices together; see driver_peak
  /// What the host gave its devices: kernels, copies, collectives and messages. A captured step
  /// that is replayed is one.
  int64_t launches = 0;
};

/// One operator over the whole run and all ranks.
struct OperatorSummary {
  uint32_t name = 0;
  int64_t calls = 0;
  int64_t total_ns = 0;
  double flops = 0;
  double bytes = 0;
};

/// The collectives of one verb, algorithm and size of group over the whole run and all groups.
struct CollectiveSummary {
  uint32_t name = 0;
  uint32_t algorithm = 0;  ///< as in TraceOperation
  int32_t ranks = 0;       ///< of a group
  int64_t calls = 0;       ///< a folded group counts as it would without folding
  int64_t total_ns = 0;    ///< without the members' waits for each other
  int64_t shared_ns = 0;   ///< of it, what collectives of other groups on the same links added
  double bytes = 0;
  /// The bytes that cross every member's link by a ring, as nccl-tests counts them: divided by
  /// total_ns, the bandwidth of the bus.
  double bus_bytes = 0;
};

/// Calls of one name over the whole run, of all ranks.
struct CallSummary {
  uint32_t name = 0;
  int64_t calls = 0;
  int64_t bytes = 0;
  int64_t total_ns = 0;  ///< that ranks' hosts waited
};

/// What operators do in forward passes with the parameters of one module. A backward pass does not
/// tell whose its operators are.
struct ModuleSummary {
  std::string module;  ///< as in ModuleMemory
  int64_t calls = 0;
  int64_t total_ns = 0;
  double flops = 0;
  double bytes = 0;
};

/// What one module holds of a device's memory.
struct ModuleMemory {
  std::string module;  ///< its path, as in "layers.3.attention"; "" is what belongs to none
  std::array<int64_t, kNumMemoryCategories> bytes = {};
};

int64_t total_bytes(const ModuleMemory& memory);

/// The path with a star for each number, so that layers that are alike have one name:
/// "layers.*.attention".
std::string module_pattern(const std::string& module);

/// The links of a cluster, one direction each.
enum class LinkKind : uint8_t {
  kNodeOut,  ///< from a device to the others of its node; on a torus, to its neighbours
  kNodeIn,
  kBridge,  ///< a node's host bridge
  kNicOut,
  kNicIn,
  kFromHost,  ///< from the host's memory to a device
  kToHost,
  kDiskRead,
  kDiskWrite,
};
inline constexpr size_t kNumLinkKinds = 9;

/// The use of all links of one kind. Bytes are those that the algorithms send
/// (network/link_use.h); what ranks of a folded cluster do is counted.
struct LinkSummary {
  LinkKind kind = LinkKind::kNodeOut;
  int64_t links = 0;
  double bytes_per_second = 0;  ///< of each, as the cluster's specification has it
  double bytes = 0;             ///< over all links, in the whole run
  double least_bytes = 0;       ///< over one link
  double most_bytes = 0;        ///< over the worst link
  /// Bytes as a share of what the links carry at their rate in the whole run, and the same of the
  /// worst link.
  double use = 0;
  double worst_use = 0;
  /// In a step, as StepTimes counts steps: the mean bytes over one link, and shares as above.
  double step_bytes = 0;
  double step_use = 0;
  double worst_step_use = 0;
  /// The link over which the steps send most: "rank 3", "NIC 1 of node 0", "node 2".
  std::string worst;
  /// The time in the whole run with something under way, latencies included. Where ranks share a
  /// link, at least this: it is that of the busiest rank.
  double mean_busy_ns = 0;
  int64_t worst_busy_ns = 0;
};

/// An axis of the program's mesh, along which it has made groups.
struct TraceAxis {
  std::string name;              ///< "tp"
  std::vector<int> coordinates;  ///< by rank, -1 where unknown; empty for an axis that joins others
};

/// The bytes that one rank sent to another over the whole run in groups along one axis.
struct Traffic {
  int32_t source = 0;
  int32_t target = 0;
  double bytes = 0;
  int32_t axis = -1;  ///< index into Trace::axes; -1: in groups that are not along an axis

  bool operator==(const Traffic&) const = default;
};

/// Where one rank was when the run failed.
struct RankAtFailure {
  std::string state;      ///< what it waited for, or how it had ended
  std::string last_call;  ///< its last collective or message and the call's state; empty: none
};

/// The parts of a training step, one after the other. Those of several micro-steps add up.
enum class StepPhase : uint8_t {
  kForward,   ///< from the end of the step before, or of the micro-step, to the backward pass
  kBackward,  ///< with the reduction of gradients
  kUpdate,    ///< from the end of the last backward pass
};
inline constexpr size_t kNumStepPhases = 3;

/// What all ranks did in a training step, each until its own end of it.
struct StepWork {
  int64_t operators = 0;  ///< calls, as those of OperatorSummary
  double bytes = 0;       ///< that they move
  double flops = 0;
  /// The part of `flops` that a backward pass computed again: activations that were not kept, and
  /// the scores of fused attention.
  double recomputed_flops = 0;
  int64_t launches = 0;  ///< as in RankSummary
  int64_t blocks = 0;    ///< that were allocated
  int64_t block_bytes = 0;
};

/// A training step.
struct TraceStep {
  int64_t end_ns = 0;  ///< of rank 0's devices' work
  StepWork work;
  /// Rank 0's communication since the step before that no kernel hides.
  int64_t exposed_ns = 0;
  std::array<int64_t, kNumStepPhases> phase_ns = {};  ///< of rank 0's devices' work
};

/// The end of a run that failed.
struct RunFailure {
  std::string message;               ///< as the program's user reads it
  std::vector<RankAtFailure> ranks;  ///< at the first failure; by rank
  bool is_out_of_memory = false;     ///< a device has not enough memory
};

/// Where a rule of the plan of faults fired.
struct FaultStrike {
  int32_t rank = 0;   ///< that came to the place
  uint32_t rule = 0;  ///< its text, as a number of Trace::names
  int64_t at_ns = 0;
};

/// What the run was, and how it ended.
struct RunDescription {
  std::string topology;  ///< ClusterSpec::to_string()
  uint64_t seed = 0;
  std::string program = {};  ///< its file, as it was started; empty: a test
  std::string repeat_command;
  std::map<std::string, std::string> versions = {};  ///< of the program's libraries, by name
  /// What decides the last bits of values, and of times nothing: "instruction_set" of the CPU that
  /// LibTorch's kernels use ("AVX2"), and the number of intra-op "threads" of a rank.
  std::map<std::string, std::string> arithmetic = {};
  std::string device;           ///< the kind's name; empty: no hardware, see models_time()
  int64_t memory_capacity = 0;  ///< of each device; 0: no device is modelled
  double peak_flops = 0;        ///< of each device in a second, in bfloat16
  std::optional<RunFailure> failure = std::nullopt;  ///< nullopt: the run succeeded
  /// What became of each rule of the plan of faults, a line: where it struck, or why it did not.
  std::vector<std::string> faults = {};
};

struct Trace : RunDescription {
  int world_size = 0;
  int ranks_per_node = 1;
  /// By rank: the rank that it counts as, which is the rank itself unless it is folded. Folded
  /// ranks have no slices and no memory samples; sums include them. Empty: no rank is folded.
  std::vector<int> counts_as;
  int devices_per_rank = 1;
  std::vector<TraceAxis> axes;
  std::vector<std::string> names;  ///< 0 is ""
  /// In the order of recording. The slices of one rank, device and stream are also in order of
  /// time.
  std::vector<Slice> slices;
  std::vector<TraceOperation> operations;
  /// By rank, then by device, then by time. One instant may have two samples: the highest, then the
  /// last.
  std::vector<MemorySample> memory;
  /// The slices beyond the Recorder's limit. The summaries below include them.
  int64_t dropped_slices = 0;
  /// The time of kernels in compiled regions, of all ranks: predicted, as if they were fused.
  int64_t predicted_ns = 0;
  /// The following fields are filled at the end of the run.
  std::vector<RankSummary> ranks;
  std::vector<OperatorSummary> operators;
  /// By total time.
  std::vector<CollectiveSummary> collectives;
  // By name.
  /// The blocks of devices' memory, by the operator that allocated them; "": the program itself. A
  /// block from the caching allocator counts, whether the driver was asked or not.
  std::vector<CallSummary> allocations;
  /// The hosts' waits for devices, also for idle ones, by the call that made them wait: an operator
  /// that gives the host values, a copy, or a synchronisation of a device, stream or event.
  std::vector<CallSummary> synchronisations;
  std::vector<ModuleSummary> modules;
  /// Operations on files: "read", of a part, or a map of the whole; "write"; "sync". Their
  /// `total_ns` is 0 where files take no time.
  std::vector<CallSummary> files;
  /// Those of the hardware that carried something, in the order of LinkKind.
  std::vector<LinkSummary> links;
  /// The rank whose device had the highest peak, and what filled that device then, by module, the
  /// largest first. Adds up to the rank's at_peak. Empty: nothing was allocated.
  int32_t peak_rank = 0;
  std::vector<ModuleMemory> peak_modules;
  /// The pairs of ranks of which one sent bytes to the other, by sender, by receiver, by axis. A
  /// collective counts the bytes that a ring of its members passes on, a gather or scatter those
  /// between the root and each member. What a member of an all-to-all sends counts as sent to the
  /// next one.
  std::vector<Traffic> communication;
  /// The training steps that ended; empty if the recorder was not told of any. A step ends when the
  /// next one begins, so the last of a program is none of them.
  std::vector<TraceStep> steps;
  /// What all ranks together take in an optimizer step; 0: unknown.
  double samples_per_step = 0;
  /// In the order of the run, the first thousand.
  std::vector<FaultStrike> strikes;
};

/// The number of ranks whose programs ran.
int num_executed(const Trace& trace);

/// Whether operators and communication take virtual time: the topology names a device. If not, only
/// a rank that sleeps moves its clock.
bool models_time(const Trace& trace);

/// The links that a step uses most, by their worst link; null if none carried anything. Without
/// steps, in the whole run.
const LinkSummary* busiest_links(const Trace& trace);

/// The rank's place in the mesh, as in "dp_shard 1, tp 3"; empty if the program made none.
std::string place_of(const Trace& trace, int rank);

/// The time at which the last rank ended.
int64_t elapsed_ns(const Trace& trace);

/// The training steps in figures. If there is more than one step, all fields but `first_ns` exclude
/// the first step, which also sets up optimizer state and buckets.
struct StepTimes {
  int64_t steps = 0;
  int64_t first_ns = 0;
  int64_t shortest_ns = 0;
  int64_t median_ns = 0;    ///< of an even number of steps, the shorter of the two in the middle
  int64_t median_step = 0;  ///< the number, from 0, of the first step that takes the median
  int64_t longest_ns = 0;
  // Means.
  double mean_ns = 0;
  double flops = 0;       ///< of all ranks in a step
  double exposed_ns = 0;  ///< of rank 0's communication in a step
  std::array<double, kNumStepPhases> phase_ns = {};
  /// Model and hardware FLOPs utilisation: the operators' FLOPs without and with what a backward
  /// pass computed again, as a share of what all devices compute in bfloat16 at their peak in that
  /// time. 0 where time is not modelled.
  double mfu = 0;
  double hfu = 0;
};

/// Returns nullopt if the trace has no steps.
std::optional<StepTimes> step_times(const Trace& trace);

}  // namespace accelerate::simulator

namespace accelerate {

ACCELERATE_ENUM_TEXTS(simulator::MemoryCategory, "memory", "parameters", "gathered parameters",
                      "gradients", "optimizer state", "activations", "buckets", "temporaries")
ACCELERATE_ENUM_TEXTS(simulator::SliceKind, "kind of slice", "kernel", "copy", "collective",
                      "message", "host", "wait", "disk")
ACCELERATE_ENUM_TEXTS(simulator::LinkKind, "kind of link", "node links out", "node links in",
                      "host bridges", "NICs out", "NICs in", "host to device", "device to host",
                      "disk reads", "disk writes")
ACCELERATE_ENUM_TEXTS(simulator::StepPhase, "phase", "forward", "backward", "optimizer")

}  // namespace accelerate
