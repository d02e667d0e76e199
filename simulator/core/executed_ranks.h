/// Which ranks of a cluster run their programs, and which are folded: counted as one that does.
///
/// A class is a set of ranks that do the same at the same time, as replicas of a model do. Its
/// lowest executed rank represents those that are not executed. Tasks of the scheduler are the
/// executed ranks, in ascending order.
///
/// Threads: any, as the object does not change.
#pragma once

#include <string>
#include <vector>

namespace accelerate::simulator {

class ExecutedRanks {
 public:
  /// Every rank is executed.
  explicit ExecutedRanks(int world_size);

  /// `class_of` has the class of each rank, a number from 0; `executed` says which ranks run, by
  /// rank, with one of each class at least.
  ExecutedRanks(std::vector<int> class_of, const std::vector<bool>& executed);

  int world_size() const { return static_cast<int>(class_of_.size()); }
  int num_tasks() const { return static_cast<int>(ranks_.size()); }
  /// The executed ranks, ascending.
  const std::vector<int>& ranks() const { return ranks_; }
  /// Whether there are folded ranks.
  bool folds() const { return num_tasks() < world_size(); }

  int rank_of(int task) const { return ranks_[task]; }
  /// The task of an executed rank.
  int task_of(int rank) const { return task_of_[rank]; }
  bool is_executed(int rank) const { return task_of_[rank] >= 0; }
  int class_of(int rank) const { return class_of_[rank]; }
  int num_classes() const { return static_cast<int>(representatives_.size()); }
  /// Whether there are classes of which several ranks run, which should do the same.
  bool has_spot_checks() const { return num_tasks() > num_classes(); }
  /// The rank that a rank counts as: itself if it is executed.
  int representative_of(int rank) const {
    return is_executed(rank) ? rank : representatives_[class_of_[rank]];
  }
  /// By rank: the rank that it counts as. Empty if no rank is folded.
  std::vector<int> counts_as() const;
  /// How many ranks an executed rank counts for, itself included.
  int weight_of(int rank) const { return weights_[task_of_[rank]]; }

  /// "8 of 1024 ranks executed".
  std::string to_string() const;

 private:
  void number_tasks();

  std::vector<int> class_of_;         // by rank
  std::vector<int> representatives_;  // by class
  std::vector<int> ranks_;            // by task
  std::vector<int> task_of_;          // by rank; -1: folded
  std::vector<int> weights_;          // by task
};

}  // namespace accelerate::simulator
