#include "accelerate/pipeline/messages.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

namespace accelerate::pipeline {
namespace {

// The message that an action needs from another rank.
std::optional<Message> received(const Action& action, const std::vector<int>& ranks) {
  const auto& [pass, stage, micro_batch] = action;
  if (pass == Pass::kWeightGradient) return std::nullopt;
  const int from = pass == Pass::kForward ? stage - 1 : stage + 1;
  if (from < 0 || from == static_cast<int>(ranks.size())) return std::nullopt;
  const int from_rank = ranks[static_cast<size_t>(from)];
  const int to_rank = ranks[static_cast<size_t>(stage)];
  if (from_rank == to_rank) return std::nullopt;
  return Message{from, stage, micro_batch, from_rank, to_rank};
}

}  // namespace

std::vector<std::vector<Step>> schedule_steps(const Schedule& schedule) {
  const std::vector<int> ranks = stage_ranks(schedule);
  const ActionIndex index(schedule);
  std::vector<std::vector<Step>> steps(schedule.ranks.size());
  for (size_t rank = 0; rank < steps.size(); ++rank) {
    for (const Action& action : schedule.ranks[rank]) {
      steps[rank].push_back({.action = action, .receive = received(action, ranks)});
    }
  }
  // By channel the last action of the sender that a message so far has waited for.
  std::map<std::pair<int, int>, size_t> last;
  for (const std::vector<Step>& each : steps) {
    for (const Step& step : each) {
      if (!step.receive) continue;
      const Message& message = *step.receive;
      const ActionPlace& made = message.is_gradient()
                                    ? index.gradient(message.from_stage, message.micro_batch)
                                    : index.forward(message.from_stage, message.micro_batch);
      size_t& at = last[{message.from_rank, message.to_rank}];
      at = std::max(at, made.index);
      steps[made.rank][at].sends.push_back(message);
    }
  }
  return steps;
}

}  // namespace accelerate::pipeline
