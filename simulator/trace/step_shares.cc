#include "simulator/trace/step_shares.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace accelerate::simulator {
namespace {

// By rank whose slices were recorded, what it does in that time; of communication, the operations
// that are marked.
std::map<int, BusyTime::Totals> busy_in(const Trace& trace, Interval time,
                                        const std::vector<bool>& marked) {
  std::map<int, BusyTime> by_rank;
  for (const Slice& slice : trace.slices) {
    // Never folded, so that the sums are exact.
    BusyTime& busy = by_rank.try_emplace(slice.rank, trace.slices.size()).first->second;
    const Interval part = {.start_ns = std::max(slice.start_ns, time.start_ns),
                           .end_ns = std::min(slice.end_ns, time.end_ns)};
    if (part.end_ns <= part.start_ns) continue;
    if (slice.kind == SliceKind::kKernel) busy.add_kernel(part);
    if (slice.kind == SliceKind::kCopy) busy.add_copy(part);
    const bool is_marked = slice.operation >= 0 && marked[static_cast<size_t>(slice.operation)];
    if (is_marked) busy.add_communication(part);
  }
  std::map<int, BusyTime::Totals> totals;
  for (const auto& [rank, busy] : by_rank) totals.emplace(rank, busy.totals());
  return totals;
}

// By operation. A group has the name of its axis, and then its ranks.
std::vector<bool> exchanges_along(const Trace& trace, const std::string& axis) {
  const std::string beginning = absl::StrCat(axis, " of ranks ");
  std::vector<bool> are_exchanges;
  for (const TraceOperation& each : trace.operations) {
    are_exchanges.push_back(trace.names[each.name] == "all_to_all_single" &&
                            absl::StartsWith(trace.names[each.group], beginning));
  }
  return are_exchanges;
}

}  // namespace

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

std::optional<Interval> median_step(const Trace& trace) {
  const std::optional<StepTimes> times = step_times(trace);
  if (!times || !models_time(trace) || trace.dropped_slices > 0) return std::nullopt;
  const int64_t end_ns = trace.steps[times->median_step].end_ns;
  return Interval{.start_ns = end_ns - times->median_ns, .end_ns = end_ns};
}

std::optional<std::array<int64_t, kNumStepActivities>> step_shares(const Trace& trace) {
  const std::optional<Interval> step = median_step(trace);
  if (!step) return std::nullopt;
  const auto [begin_ns, end_ns] = *step;
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

std::vector<StageShare> stage_shares(const Trace& trace) {
  const std::optional<Interval> step = median_step(trace);
  const auto axis = std::ranges::find(trace.axes, "pp", &TraceAxis::name);
  if (!step || axis == trace.axes.end()) return {};
  std::map<int, StageShare> by_stage;
  const std::vector<bool> no_operation(trace.operations.size());
  for (const auto& [rank, busy] : busy_in(trace, *step, no_operation)) {
    const auto place = static_cast<size_t>(rank);
    const int stage = place < axis->coordinates.size() ? axis->coordinates[place] : -1;
    if (stage < 0) continue;
    StageShare& share = by_stage[stage];
    share.stage = stage;
    ++share.ranks;
    share.busy_ns += busy.compute_ns;
  }
  std::vector<StageShare> shares;
  for (auto& [stage, share] : by_stage) {
    share.busy_ns /= share.ranks;
    share.bubble_ns = step->end_ns - step->start_ns - share.busy_ns;
    shares.push_back(share);
  }
  return shares;
}

std::vector<SequenceExchanges> sequence_exchanges(const Trace& trace) {
  const std::optional<Interval> step = median_step(trace);
  if (!step) return {};
  std::vector<SequenceExchanges> all;
  for (const char* axis : {"cp", "sp"}) {
    const std::vector<bool> are_exchanges = exchanges_along(trace, axis);
    const auto none = are_exchanges.end();
    if (std::find(are_exchanges.begin(), none, true) == none) continue;
    const std::map<int, BusyTime::Totals> by_rank = busy_in(trace, *step, are_exchanges);
    SequenceExchanges sums{.axis = axis};
    for (const auto& [rank, busy] : by_rank) {
      sums.exchange_ns += busy.communication_ns;
      sums.exposed_ns += busy.exposed_ns;
    }
    const auto ranks = static_cast<int64_t>(by_rank.size());
    sums.exchange_ns /= ranks;
    sums.exposed_ns /= ranks;
    if (sums.exchange_ns > 0) all.push_back(std::move(sums));
  }
  return all;
}

}  // namespace accelerate::simulator
