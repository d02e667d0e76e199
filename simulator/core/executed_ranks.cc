#include "simulator/core/executed_ranks.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/log/absl_check.h"
#include "absl/strings/str_cat.h"

namespace accelerate::simulator {

ExecutedRanks::ExecutedRanks(int world_size) : class_of_(world_size), ranks_(world_size) {
  std::iota(class_of_.begin(), class_of_.end(), 0);
  std::iota(ranks_.begin(), ranks_.end(), 0);
  representatives_ = ranks_;
  number_tasks();
}

ExecutedRanks::ExecutedRanks(std::vector<int> class_of, const std::vector<bool>& executed)
    : class_of_(std::move(class_of)) {
  representatives_.assign(*std::max_element(class_of_.begin(), class_of_.end()) + 1, -1);
  for (int rank = 0; rank < world_size(); ++rank) {
    if (!executed[rank]) continue;
    ranks_.push_back(rank);
    int& representative = representatives_[class_of_[rank]];
    if (representative < 0) representative = rank;
  }
  ABSL_CHECK(std::ranges::find(representatives_, -1) == representatives_.end())
      << "a class without an executed rank";
  number_tasks();
}

void ExecutedRanks::number_tasks() {
  task_of_.assign(world_size(), -1);
  for (int task = 0; task < num_tasks(); ++task) task_of_[ranks_[task]] = task;
  weights_.assign(num_tasks(), 0);
  for (int rank = 0; rank < world_size(); ++rank) ++weights_[task_of_[representative_of(rank)]];
}

std::vector<int> ExecutedRanks::counts_as() const {
  std::vector<int> ranks;
  for (int rank = 0; folds() && rank < world_size(); ++rank) {
    ranks.push_back(representative_of(rank));
  }
  return ranks;
}

std::string ExecutedRanks::to_string() const {
  return absl::StrCat(num_tasks(), " of ", world_size(), " ranks executed");
}

}  // namespace accelerate::simulator
