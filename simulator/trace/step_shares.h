/// What the median training step goes to: of rank 0, of the stages of a pipeline, and of ranks that
/// exchange parts of sequences. All of it is unknown, that is, none or empty, if the trace has no
/// step, no times or not all slices.
///
/// Units: nanoseconds of virtual time.
/// Threads: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "simulator/trace/rank_sums.h"
#include "simulator/trace/trace.h"

namespace accelerate::simulator {

/// Each instant belongs to the first of these that happens on any of the rank's devices.
enum class StepActivity : uint8_t {
  kAttention,      ///< fused
  kProducts,       ///< of matrices, and convolutions
  kOtherKernels,   ///< whose time is that of their memory traffic
  kCommunication,  ///< a collective, a message or a wait for one, with no kernel: exposed
  kCopies,         ///< to and from the host, and between devices
  kNothing,        ///< the devices wait for the host, or it for a disk
};
inline constexpr size_t kNumStepActivities = 6;

/// By the number of a name in Trace::names, what a kernel of that name counts as.
std::vector<StepActivity> kernel_activities(const Trace& trace);

/// What a slice counts as, with the activities of kernels; nullopt: nothing, as the host's waits.
std::optional<StepActivity> activity_of(const Slice& slice,
                                        const std::vector<StepActivity>& kernels);

/// From the step's beginning to its end.
std::optional<Interval> median_step(const Trace& trace);

/// The time of each activity, which the step adds up to.
std::optional<std::array<int64_t, kNumStepActivities>> step_shares(const Trace& trace);

/// How long a place along a pipeline computes, and how long it waits.
struct StageShare {
  int stage = 0;
  int ranks = 0;  ///< that have it, and whose slices were recorded
  /// The mean over these ranks of the time with a kernel or a copy on one of the rank's devices,
  /// and of the rest of the step.
  int64_t busy_ns = 0;
  int64_t bubble_ns = 0;

  bool operator==(const StageShare&) const = default;
};

/// By place along the axis "pp"; empty where the program's mesh has no such axis.
std::vector<StageShare> stage_shares(const Trace& trace);

/// The all-to-alls in the groups along an axis: the hops of a ring along "cp", and what attention
/// along "sp" trades.
struct SequenceExchanges {
  std::string axis;
  /// Means over the ranks whose slices were recorded: of the time in an exchange, or waiting for
  /// its members, and of the part of it without a kernel on the rank's devices.
  int64_t exchange_ns = 0;
  int64_t exposed_ns = 0;

  bool operator==(const SequenceExchanges&) const = default;
};

/// By axis; empty without such exchanges.
std::vector<SequenceExchanges> sequence_exchanges(const Trace& trace);

}  // namespace accelerate::simulator

namespace accelerate {

ACCELERATE_ENUM_TEXTS(simulator::StepActivity, "activity", "attention", "matrix products",
                      "other kernels", "exposed communication", "copies", "nothing to do")

}  // namespace accelerate
