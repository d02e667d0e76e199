/// What a training step of rank 0 spends its time on.
///
/// Units: nanoseconds of virtual time.
/// Threads: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "simulator/trace/trace.h"

namespace accelerate::simulator {

/// Each instant belongs to the first of these that happens on any of the rank's devices.
enum class StepActivity : uint8_t {
  kAttention,      ///< fused
  kProducts,       ///< of matrices, and convolutions
  kOtherKernels,   ///< whose time is that of their memory traffic
  kCopies,         ///< to and from the host, and between devices
  kCommunication,  ///< a collective, a message or a wait for one: exposed
  kHost,           ///< the devices have nothing to do
};
inline constexpr size_t kNumStepActivities = 6;

/// "attention", "matrix products", "other kernels", "copies", "exposed communication",
/// "waiting for the host".
const char* to_string(StepActivity activity);

/// The time of each in the median step, which it adds up to; none if the trace has no step, or not
/// all slices.
std::optional<std::array<int64_t, kNumStepActivities>> step_shares(const Trace& trace);

}  // namespace accelerate::simulator
