/// What a training step of rank 0 spends its time on.
///
/// Units: nanoseconds of virtual time.
/// Threads: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

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

/// The time of each in the median step, which it adds up to; none if the trace has no step, or not
/// all slices.
std::optional<std::array<int64_t, kNumStepActivities>> step_shares(const Trace& trace);

}  // namespace accelerate::simulator

namespace accelerate {

ACCELERATE_ENUM_TEXTS(simulator::StepActivity, "activity", "attention", "matrix products",
                      "other kernels", "exposed communication", "copies", "nothing to do")

}  // namespace accelerate
