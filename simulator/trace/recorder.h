/// Records the events of a simulated run and summarises them as a Trace.
///
/// The recorder is called for every operator, collective and allocation, so it formats nothing and
/// looks up nothing but names, in intern(). Callers keep the ids of the names that they use often.
/// Memory: bounded by RecorderOptions. Beyond a limit curves get coarser and slices are dropped;
///         sums stay complete.
/// Units: nanoseconds of virtual time, bytes.
/// Errors: a rank, name or time out of range is a bug in the caller and aborts the program.
/// Threads: one at a time (the rank that holds the baton).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "absl/strings/string_view.h"
#include "simulator/trace/link_sums.h"
#include "simulator/trace/rank_sums.h"
#include "simulator/trace/trace.h"

namespace accelerate::simulator {

/// The track of a disk's writes; kDiskStream is the track of its reads.
inline constexpr int32_t kDiskWriteStream = kDiskStream + 1;

struct RecorderOptions {
  int world_size = 1;
  int ranks_per_node = 1;
  int devices_per_rank = 1;
  /// Further slices are counted in Trace::dropped_slices, and no further operation is kept.
  int64_t max_slices = 2'000'000;
  /// For all devices together; each gets an equal part, and at least 256.
  int64_t max_memory_samples = 1'000'000;
  /// Per rank; see BusyTime.
  size_t max_open_intervals = 4096;
};

class Recorder {
 public:
  explicit Recorder(RecorderOptions options);

  /// Says which ranks are folded, before anything is recorded; see Trace::counts_as.
  void fold(std::vector<int> counts_as);

  /// The number of a name; equal names have equal numbers, "" has 0.
  uint32_t intern(absl::string_view name);

  /// Records a part of a rank's time. The slices of one rank, device and stream must come in order.
  void slice(const Slice& slice);

  /// Records that a rank's host waits, on a track of its own. `kind` is kHost or kDisk.
  void host_wait(int rank, int64_t start_ns, int64_t end_ns, SliceKind kind = SliceKind::kHost);

  /// Returns the number for Slice::operation; -1 if the operation is not kept.
  int64_t operation(TraceOperation operation);

  /// Counts `each.calls` more collectives of the same name, algorithm and number of ranks.
  void collective(const CollectiveSummary& each);

  /// Records that a device of a rank holds `delta` bytes more, or fewer, in a category and for a
  /// module. `device` is its number among the rank's, `module` a number of the device's own.
  void memory(int rank, int device, int64_t at_ns, MemoryCategory category, int64_t delta,
              uint32_t module = 0);
  /// Says what a device's numbers of modules mean.
  void modules(int rank, int device, std::vector<std::string> names);

  /// Records the memory that a rank's device needed as its driver shows it, once a device.
  void driver_memory(int rank, int64_t peak, int64_t retries);

  /// Counts blocks that an operator has allocated on a rank's device; "" is the program itself.
  void allocations(int rank, absl::string_view operation, int64_t blocks, int64_t bytes);

  /// Counts what a device of a rank was given and the blocks that it allocated since it last said
  /// so; it does before a step's end and at the run's. The parts of `work` that op_cost tells stay
  /// 0.
  void device_work(int rank, const StepWork& work);

  /// Records that the call `name` made a rank's host wait for a device, for so long.
  void synchronisation(int rank, uint32_t name, int64_t waited_ns);

  /// Records an operation of a rank on a file; `operation` as in Trace::files.
  void file(int rank, absl::string_view operation, int64_t bytes, int64_t waited_ns);

  /// Records that work for a module ran in a forward pass; `device` and `module` as in memory().
  void module_cost(int rank, int device, uint32_t module, int64_t ns, double flops, double bytes);

  /// Records one call of an operator. `recomputed` is the part of `flops` that a backward pass
  /// computes again.
  void op_cost(int rank, uint32_t name, int64_t ns, double flops, double bytes,
               double recomputed = 0);

  /// Records that a kernel of a compiled region took so long.
  void predicted(int rank, int64_t ns);

  /// The number of an axis of the program's mesh; equal names have equal numbers.
  int axis(absl::string_view name);
  /// Says that the ranks are neighbours along an axis, in this order.
  void place_along(int axis, const std::vector<int>& ranks);

  /// Records bytes that one rank sent to another; `axis` is that of their group, -1 for none.
  void traffic(int source, int target, double bytes, int axis = -1);

  /// Records that bytes cross a link at a rank.
  void link(int rank, LinkKind kind, double bytes, int64_t start_ns, int64_t end_ns);

  /// Records that a rank begins the next training step, so that what it computed belongs to the
  /// one before.
  void end_step_of(int rank);
  /// Records the end of a training step, with which a forward pass begins, and the beginning of
  /// another phase. Rank 0 alone calls these.
  void step(int64_t at_ns);
  void phase(StepPhase next, int64_t at_ns);
  StepPhase current_phase() const { return phase_; }
  /// Says how many samples all ranks together train on in an optimizer step.
  void samples_per_step(double samples) { trace_.samples_per_step = samples; }

  /// Records that a rule of the plan of faults fired where the rank is.
  void fault(int rank, absl::string_view rule, int64_t at_ns);

  /// Records the end of a rank's program; slices of the rank may end later.
  void end_rank(int rank, int64_t at_ns);

  /// Returns the whole run on a cluster with these links. The recorder must not be used afterwards.
  Trace finish(RunDescription run, const std::vector<LinkClass>& links = {});

 private:
  struct DeviceState {
    std::string name_of(size_t module) const {
      return module < module_names.size() ? module_names[module] : "";
    }

    MemoryCurve memory;
    ModuleSums modules = {};
    std::vector<std::string> module_names = {};
    std::vector<ModuleSummary> module_costs = {};  // by module
  };
  struct RankState {
    explicit RankState(size_t max_open_intervals) : busy(max_open_intervals) {}

    BusyTime busy;
    std::vector<DeviceState> devices;
    int64_t end_ns = 0;
    double flops = 0;
    int64_t launches = 0;
    StepWork step_work;  // since its last step's end
    size_t steps = 0;
    std::unique_ptr<RankLinks> links;  // null until it uses one
    int64_t driver_peak = 0;
    int64_t allocation_retries = 0;
    int weight = 1;  // the number of ranks that it counts for
  };

  // Allows a lookup by string_view.
  struct NameHash {
    using is_transparent = void;
    size_t operator()(std::string_view name) const { return std::hash<std::string_view>()(name); }
  };

  RankState& state_of(int rank);
  void finish_traffic();
  void finish_module_costs();
  // By the numbers of their names.
  using CallSums = std::unordered_map<uint32_t, CallSummary>;
  static void add_calls(CallSums& sums, const CallSummary& calls);
  // The sums, by the text of their names.
  std::vector<CallSummary> by_name(const CallSums& sums) const;
  void finish_modules();
  void finish_links(const std::vector<LinkClass>& classes);

  RecorderOptions options_;
  Trace trace_;
  // By name. Abseil's map does not compile with GCC's -fsanitize=undefined.
  std::unordered_map<std::string, uint32_t, NameHash, std::equal_to<>> numbers_;
  std::vector<RankState> ranks_;
  std::vector<OperatorSummary> operators_;  // by name
  CallSums allocations_;
  CallSums synchronisations_;
  CallSums files_;
  StepPhase phase_ = StepPhase::kForward;
  int64_t phase_began_ns_ = 0;
  std::array<int64_t, kNumStepPhases> phase_ns_ = {};  // of this step
  int64_t exposed_before_ns_ = 0;                      // until the last step's end
  std::vector<StepWork> work_by_step_;                 // of all ranks
  // By name, algorithm and number of ranks.
  std::map<std::tuple<uint32_t, uint32_t, int32_t>, CollectiveSummary> collectives_;
  // Bytes by axis + 1, then by sender and receiver: sender * world size + receiver. Few pairs of
  // many ranks talk.
  std::vector<std::unordered_map<int64_t, double>> traffic_;
};

}  // namespace accelerate::simulator
