#include "accelerate/pipeline/action_index.h"

namespace accelerate::pipeline {

ActionIndex::ActionIndex(const Schedule& schedule)
    : stages_(schedule.stages),
      micro_batches_(static_cast<size_t>(schedule.micro_batches)),
      forward_(static_cast<size_t>(stages_) * micro_batches_),
      gradients_(forward_.size()) {
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const auto& [pass, stage, micro_batch] = schedule.ranks[rank][i];
      if (pass == Pass::kWeightGradient) continue;
      std::vector<ActionPlace>& places = pass == Pass::kForward ? forward_ : gradients_;
      places[cell(stage, micro_batch)] = {rank, i};
    }
  }
}

std::vector<ActionPlace> ActionIndex::needs(const Action& action) const {
  const auto& [pass, stage, micro_batch] = action;
  switch (pass) {
    case Pass::kForward:
      if (stage == 0) return {};
      return {forward(stage - 1, micro_batch)};
    case Pass::kWeightGradient: return {gradient(stage, micro_batch)};
    case Pass::kBackward:
    case Pass::kInputGradient: break;
  }
  if (stage == stages_ - 1) return {forward(stage, micro_batch)};
  return {forward(stage, micro_batch), gradient(stage + 1, micro_batch)};
}

}  // namespace accelerate::pipeline
