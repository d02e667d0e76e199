#include "accelerate/pipeline/costs.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "accelerate/base/status.h"
#include "accelerate/pipeline/check.h"

namespace accelerate::pipeline {
namespace {

// Sums of sums of this stay below 2^63.
constexpr double kMostTime = 4e18;

int64_t cost_of(const PipelineCosts& costs, const Action& action) {
  const size_t number = costs.stages.size() == 1 ? 0 : static_cast<size_t>(action.stage);
  const StageCosts& stage = costs.stages[number];
  switch (action.pass) {
    case Pass::kForward: return stage.forward_ns;
    case Pass::kBackward: return stage.input_gradient_ns + stage.weight_gradient_ns;
    case Pass::kInputGradient: return stage.input_gradient_ns;
    case Pass::kWeightGradient: return stage.weight_gradient_ns;
  }
  return 0;
}

absl::Status check_costs(const Schedule& schedule, const PipelineCosts& costs) {
  if (costs.stages.size() != 1 && costs.stages.size() != static_cast<size_t>(schedule.stages)) {
    return invalid("a pipeline of ", schedule.stages, " stages has costs of ", costs.stages.size());
  }
  if (costs.hop_ns < 0) return invalid("a hop takes ", costs.hop_ns, " ns");
  // Each action and one hop for each: nothing takes longer.
  double total = 0;
  for (size_t i = 0; i < costs.stages.size(); ++i) {
    const auto& [forward, input, weight] = costs.stages[i];
    for (const int64_t cost : {forward, input, weight}) {
      if (cost < 0) return invalid("a pass of stage ", i, " takes ", cost, " ns");
      total += static_cast<double>(cost) + static_cast<double>(costs.hop_ns);
    }
  }
  total *= static_cast<double>(schedule.stages) / static_cast<double>(costs.stages.size());
  total *= static_cast<double>(schedule.micro_batches);
  if (total < kMostTime) return absl::OkStatus();
  return invalid("the actions of a pipeline take ", total,
                 " ns together, more than can be counted");
}

}  // namespace

double ScheduleTimes::bubble_share(int rank) const {
  if (makespan_ns == 0) return 0;
  const int64_t idle = makespan_ns - busy_ns[static_cast<size_t>(rank)];
  return static_cast<double>(idle) / static_cast<double>(makespan_ns);
}

double ScheduleTimes::bubble_share() const {
  if (makespan_ns == 0) return 0;
  const auto all = static_cast<double>(makespan_ns) * static_cast<double>(busy_ns.size());
  const int64_t busy = std::accumulate(busy_ns.begin(), busy_ns.end(), int64_t{0});
  return (all - static_cast<double>(busy)) / all;
}

absl::StatusOr<ScheduleTimes> schedule_times(const Schedule& schedule, const PipelineCosts& costs) {
  ACCELERATE_ASSIGN_OR_RETURN(const std::vector<ActionPlace> order, causal_order(schedule));
  ACCELERATE_RETURN_IF_ERROR(check_costs(schedule, costs));

  const ActionIndex index(schedule);
  ScheduleTimes times;
  times.ranks.resize(schedule.ranks.size());
  times.busy_ns.resize(schedule.ranks.size());
  for (const auto& [rank, i] : order) {
    const Action& action = schedule.ranks[rank][i];
    std::vector<ScheduleTimes::Span>& spans = times.ranks[rank];
    int64_t start = spans.empty() ? 0 : spans.back().end_ns;
    for (const ActionPlace& need : index.needs(action)) {
      const int64_t end = times.ranks[need.rank][need.index].end_ns;
      start = std::max(start, end + (need.rank == rank ? 0 : costs.hop_ns));
    }
    const int64_t cost = cost_of(costs, action);
    spans.push_back({start, start + cost});
    times.busy_ns[rank] += cost;
    times.makespan_ns = std::max(times.makespan_ns, start + cost);
  }
  return times;
}

}  // namespace accelerate::pipeline
