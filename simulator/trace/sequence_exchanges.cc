#include "simulator/trace/sequence_exchanges.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "simulator/trace/rank_sums.h"

namespace accelerate::simulator {
namespace {

constexpr const char* kAxes[] = {"cp", "sp"};
constexpr char kExchange[] = "all_to_all_single";

// By operation. A group has the name of its axis, and then its ranks.
std::vector<bool> exchanges_along(const Trace& trace, const std::string& axis) {
  const std::string beginning = absl::StrCat(axis, " of ranks ");
  std::vector<bool> are_exchanges;
  for (const TraceOperation& each : trace.operations) {
    are_exchanges.push_back(trace.names[each.name] == kExchange &&
                            absl::StartsWith(trace.names[each.group], beginning));
  }
  return are_exchanges;
}

}  // namespace

std::vector<SequenceExchanges> sequence_exchanges(const Trace& trace) {
  const std::optional<StepTimes> times = step_times(trace);
  if (!times || !models_time(trace) || trace.dropped_slices > 0) return {};
  const int64_t end_ns = trace.steps[times->median_step].end_ns;
  const int64_t begin_ns = end_ns - times->median_ns;
  std::vector<SequenceExchanges> all;
  for (const char* axis : kAxes) {
    const std::vector<bool> are_exchanges = exchanges_along(trace, axis);
    const auto none = are_exchanges.end();
    if (std::find(are_exchanges.begin(), none, true) == none) continue;
    std::map<int, BusyTime> by_rank;
    for (const Slice& slice : trace.slices) {
      // Never folded, so that the sums are exact.
      BusyTime& busy = by_rank.try_emplace(slice.rank, trace.slices.size()).first->second;
      const Interval in_step = {.start_ns = std::max(slice.start_ns, begin_ns),
                                .end_ns = std::min(slice.end_ns, end_ns)};
      if (in_step.end_ns <= in_step.start_ns) continue;
      if (slice.kind == SliceKind::kKernel) busy.add_kernel(in_step);
      const bool is_exchange =
          slice.operation >= 0 && are_exchanges[static_cast<size_t>(slice.operation)];
      if (is_exchange) busy.add_communication(in_step);
    }
    SequenceExchanges sums{.axis = axis};
    for (const auto& [rank, busy] : by_rank) {
      const BusyTime::Totals totals = busy.totals();
      sums.exchange_ns += totals.communication_ns;
      sums.exposed_ns += totals.exposed_ns;
    }
    const auto ranks = static_cast<int64_t>(by_rank.size());
    sums.exchange_ns /= ranks;
    sums.exposed_ns /= ranks;
    if (sums.exchange_ns > 0) all.push_back(std::move(sums));
  }
  return all;
}

}  // namespace accelerate::simulator
