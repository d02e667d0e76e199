/// Which ranks of a cluster run their programs, and which are folded: counted as one that does.
///
/// A class is a set of ranks whose programs do the same, as those of replicas of a model do. Its
/// lowest rank is executed and represents those that are not; a rank that is touched by a fault is
/// executed as well and represents no other. Tasks of the scheduler are the executed ranks, in
/// ascending order.
///
/// Threads: any, as the object does not change.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace accelerate::simulator {

class ExecutedRanks {
 public:
  /// Every rank is executed.
  explicit ExecutedRanks(int world_size);

  /// `class_of` has the class of each rank, a number from 0. Executed are the ranks `touched` by a
  /// fault, the lowest other rank of each class, and so many folded ranks drawn from the seed: see
  /// spot_checks().
  ExecutedRanks(std::vector<int> class_of, const std::vector<int>& touched, int spot_checks,
                uint64_t seed);

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
  /// Whether folded ranks of the same class may count as this one.
  bool may_represent(int rank) const { return may_represent_[rank]; }
  /// The rank that a rank counts as: itself if it is executed.
  int representative_of_class(int number) const { return representatives_[number]; }
  int representative_of(int rank) const {
    return is_executed(rank) ? rank : representatives_[class_of_[rank]];
  }
  /// How many ranks an executed rank counts for, itself included.
  int weight_of(int rank) const { return weights_[task_of_[rank]]; }

  /// Ranks that are executed for no other reason than to be compared with their representatives,
  /// ascending.
  const std::vector<int>& spot_checks() const { return spot_checks_; }

  /// "8 of 1024 ranks executed".
  std::string to_string() const;

 private:
  void number_tasks();

  std::vector<int> class_of_;         // by rank
  std::vector<int> representatives_;  // by class
  std::vector<int> ranks_;            // by task
  std::vector<int> task_of_;          // by rank; -1: folded
  std::vector<int> weights_;          // by task
  std::vector<bool> may_represent_;   // by rank
  std::vector<int> spot_checks_;
};

}  // namespace accelerate::simulator
