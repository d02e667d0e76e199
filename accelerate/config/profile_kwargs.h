/// What `Accelerator::profile` records, when, and what becomes of it.
///
/// Mirrors: accelerate utils/dataclasses.py, ProfileKwargs; torch.profiler.schedule.
/// Differs: `activities` holds each name once, in no order.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "accelerate/base/fields.h"

namespace accelerate {

class Profiler;

/// Which steps are recorded: none of the first `skip_first`; then cycles of `wait` steps that are
/// not recorded, `warmup` steps in which the profiler is made ready, and `active` steps that are
/// recorded; `repeat` cycles, or until the end if that is 0.
struct ProfileSchedule {
  int64_t skip_first = 0;
  int64_t wait = 0;
  int64_t warmup = 0;
  /// At least 1; there is no default.
  int64_t active = 0;
  int64_t repeat = 0;

  bool operator==(const ProfileSchedule&) const = default;
};

struct ProfileKwargs {
  /// "cpu", "cuda", "xpu", "mtia", "hpu". Empty: the CPU and the rank's device.
  /// "hpu" is any device that LibTorch knows as PrivateUse1.
  std::set<std::string> activities = {};
  /// Absent: everything is recorded.
  std::optional<ProfileSchedule> schedule_option = std::nullopt;
  /// Called at the end of each recording, with the profiler that holds it.
  std::function<void(Profiler&)> on_trace_ready = nullptr;
  /// Shapes and types of what operators are given.
  bool record_shapes = false;
  /// What operators allocate and release.
  bool profile_memory = false;
  /// The user's C++ functions that led to an operator.
  bool with_stack = false;
  /// Floating-point operations of matrix products, convolutions, additions and multiplications.
  bool with_flops = false;
  /// The prepared model's module whose parameters an operator uses.
  bool with_modules = false;
  /// Each rank writes its last recording there as "profile_{rank}.json", in Chrome's trace format.
  std::optional<std::string> output_trace_dir = std::nullopt;
};

/// Errors: c10::ValueError naming the activity that does not exist or the number that is not
///         allowed.
void check(const ProfileKwargs& kwargs);

ACCELERATE_FIELDS(ProfileSchedule, skip_first, wait, warmup, active, repeat)

/// Functions cannot be compared: of `on_trace_ready` visitors learn whether there is one.
template <typename Visitor>
void visit_fields(const ProfileKwargs& kwargs, Visitor&& visit) {
  visit("activities", kwargs.activities);
  visit("schedule_option", kwargs.schedule_option);
  visit("on_trace_ready", static_cast<bool>(kwargs.on_trace_ready));
  visit("record_shapes", kwargs.record_shapes);
  visit("profile_memory", kwargs.profile_memory);
  visit("with_stack", kwargs.with_stack);
  visit("with_flops", kwargs.with_flops);
  visit("with_modules", kwargs.with_modules);
  visit("output_trace_dir", kwargs.output_trace_dir);
}

}  // namespace accelerate
