#include "simulator/trace/stage_shares.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>

namespace accelerate::simulator {
namespace {

using Spans = std::vector<std::pair<int64_t, int64_t>>;  // from, to

int64_t length_of_union(Spans spans) {
  std::ranges::sort(spans);
  int64_t length = 0, covered_until = 0;
  for (const auto& [from, to] : spans) {
    length += std::max<int64_t>(0, to - std::max(from, covered_until));
    covered_until = std::max(covered_until, to);
  }
  return length;
}

}  // namespace

std::vector<StageShare> stage_shares(const Trace& trace) {
  const std::optional<StepTimes> times = step_times(trace);
  const auto axis = std::ranges::find(trace.axes, "pp", &TraceAxis::name);
  if (!times || !models_time(trace) || trace.dropped_slices > 0 || axis == trace.axes.end()) {
    return {};
  }
  const int64_t end_ns = trace.steps[times->median_step].end_ns;
  const int64_t begin_ns = end_ns - times->median_ns;
  std::map<int, Spans> by_rank;
  for (const Slice& slice : trace.slices) {
    Spans& spans = by_rank[slice.rank];
    if (slice.kind != SliceKind::kKernel && slice.kind != SliceKind::kCopy) continue;
    if (slice.end_ns <= begin_ns || slice.start_ns >= end_ns) continue;
    spans.emplace_back(std::max(slice.start_ns, begin_ns), std::min(slice.end_ns, end_ns));
  }
  std::map<int, StageShare> by_stage;
  for (auto& [rank, spans] : by_rank) {
    const auto place = static_cast<size_t>(rank);
    const int stage = place < axis->coordinates.size() ? axis->coordinates[place] : -1;
    if (stage < 0) continue;
    StageShare& share = by_stage[stage];
    share.stage = stage;
    ++share.ranks;
    share.busy_ns += length_of_union(std::move(spans));
  }
  std::vector<StageShare> shares;
  for (auto& [stage, share] : by_stage) {
    share.busy_ns /= share.ranks;
    share.bubble_ns = times->median_ns - share.busy_ns;
    shares.push_back(share);
  }
  return shares;
}

}  // namespace accelerate::simulator
