#include "simulator/trace/step_shares.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

namespace accelerate::simulator {
namespace {

std::optional<StepActivity> activity_of(const Slice& slice,
                                        const std::vector<StepActivity>& kernels) {
  switch (slice.kind) {
    case SliceKind::kKernel: return kernels[slice.name];
    case SliceKind::kCopy: return StepActivity::kCopies;
    case SliceKind::kCollective:
    case SliceKind::kMessage:
    case SliceKind::kWait: return StepActivity::kCommunication;
    case SliceKind::kHost:
    case SliceKind::kDisk: return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

// Operators that compute more than they move have FLOPs in the summary.
std::vector<StepActivity> kernel_activities(const Trace& trace) {
  std::vector<StepActivity> kinds(trace.names.size(), StepActivity::kOtherKernels);
  for (const OperatorSummary& each : trace.operators) {
    if (each.flops <= 0) continue;
    const bool is_attention = trace.names[each.name].find("attention") != std::string::npos;
    kinds[each.name] = is_attention ? StepActivity::kAttention : StepActivity::kProducts;
  }
  return kinds;
}

std::optional<std::array<int64_t, kNumStepActivities>> step_shares(const Trace& trace) {
  const std::optional<StepTimes> times = step_times(trace);
  if (!times || !models_time(trace) || trace.dropped_slices > 0) return std::nullopt;
  const int64_t end_ns = trace.steps[times->median_step].end_ns;
  const int64_t begin_ns = end_ns - times->median_ns;
  // When something begins (1) and ends (-1).
  std::vector<std::tuple<int64_t, StepActivity, int>> changes;
  const std::vector<StepActivity> kernels = kernel_activities(trace);
  for (const Slice& slice : trace.slices) {
    if (slice.rank != 0 || slice.end_ns <= begin_ns || slice.start_ns >= end_ns) continue;
    const std::optional<StepActivity> activity = activity_of(slice, kernels);
    if (!activity) continue;
    changes.emplace_back(std::max(slice.start_ns, begin_ns), *activity, 1);
    changes.emplace_back(std::min(slice.end_ns, end_ns), *activity, -1);
  }
  std::ranges::sort(changes);
  std::array<int64_t, kNumStepActivities> spent = {};
  std::array<int, kNumStepActivities> running = {};
  running[static_cast<size_t>(StepActivity::kNothing)] = 1;  // always
  int64_t now_ns = begin_ns;
  const auto pass = [&](int64_t until_ns) {
    const auto first = std::ranges::find_if(running, [](int count) { return count > 0; });
    spent[static_cast<size_t>(first - running.begin())] += until_ns - now_ns;
    now_ns = until_ns;
  };
  for (const auto& [at_ns, activity, change] : changes) {
    if (at_ns > now_ns) pass(at_ns);
    running[static_cast<size_t>(activity)] += change;
  }
  pass(end_ns);
  return spent;
}

}  // namespace accelerate::simulator
