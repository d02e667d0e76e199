#include "simulator/core/executed_ranks.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/log/absl_check.h"
#include "absl/strings/str_cat.h"
#include "simulator/core/random.h"

namespace accelerate::simulator {
namespace {

// Distinct from the random streams of ranks, of background tasks and of faults.
constexpr uint64_t kSpotChecks = uint64_t{1} << 42;

}  // namespace

ExecutedRanks::ExecutedRanks(int world_size)
    : class_of_(world_size), ranks_(world_size), may_represent_(world_size, true) {
  std::iota(class_of_.begin(), class_of_.end(), 0);
  std::iota(ranks_.begin(), ranks_.end(), 0);
  representatives_ = ranks_;
  number_tasks();
}

ExecutedRanks::ExecutedRanks(std::vector<int> class_of, const std::vector<int>& touched,
                             int spot_checks, uint64_t seed)
    : class_of_(std::move(class_of)) {
  const int classes = *std::max_element(class_of_.begin(), class_of_.end()) + 1;
  representatives_.assign(classes, -1);
  std::vector<bool> executed(world_size());
  for (int rank : touched) {
    ABSL_CHECK(rank >= 0 && rank < world_size()) << rank;
    executed[rank] = true;
  }
  for (int rank = 0; rank < world_size(); ++rank) {
    may_represent_.push_back(!executed[rank]);
    int& representative = representatives_[class_of_[rank]];
    if (executed[rank] || representative >= 0) continue;
    representative = rank;
    executed[rank] = true;
  }
  std::vector<int> folded;
  for (int rank = 0; rank < world_size(); ++rank) {
    if (!executed[rank]) folded.push_back(rank);
  }
  DeterministicRandom random = DeterministicRandom::stream(seed, kSpotChecks);
  for (int left = spot_checks; left > 0 && !folded.empty(); --left) {
    const auto drawn = folded.begin() + static_cast<int64_t>(random.below(folded.size()));
    spot_checks_.push_back(*drawn);
    executed[*drawn] = true;
    folded.erase(drawn);
  }
  std::sort(spot_checks_.begin(), spot_checks_.end());
  for (int rank = 0; rank < world_size(); ++rank) {
    if (executed[rank]) ranks_.push_back(rank);
  }
  number_tasks();
}

void ExecutedRanks::number_tasks() {
  task_of_.assign(world_size(), -1);
  for (int task = 0; task < num_tasks(); ++task) task_of_[ranks_[task]] = task;
  weights_.assign(num_tasks(), 0);
  for (int rank = 0; rank < world_size(); ++rank) ++weights_[task_of_[representative_of(rank)]];
}

std::string ExecutedRanks::to_string() const {
  return absl::StrCat(num_tasks(), " of ", world_size(), " ranks executed");
}

}  // namespace accelerate::simulator
