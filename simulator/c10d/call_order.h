/// Decides when the time of a collective can be worked out.
///
/// The links that a collective shares with those of other groups depend on which of them are known.
/// So that a time does not depend on the order in which ranks run, a collective gets its time after
/// all those that its members called before it. Where one of those is missing for want of a rank
/// that will come later, or never, the collective gets its time when nothing else can happen up to
/// the moment at which it is ready.
///
/// Cost: constant for each member of a collective, unless it is taken out of its turn.
/// Threads: one at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace accelerate::simulator {

struct Operation;

class CallOrder {
 public:
  explicit CallOrder(int num_tasks) : ranks_(num_tasks) {}

  /// The task has called the collective.
  void call(int task, const std::shared_ptr<Operation>& operation);

  /// All members have called it, and it has been carried out: it gets its time now or later.
  void carried_out(const std::shared_ptr<Operation>& operation);

  /// The collective has failed.
  void drop(const std::shared_ptr<Operation>& operation);

  /// The first call of the task that has no time yet, and has not failed; null if there is none.
  std::shared_ptr<Operation> first_without_time(int task) const;

  /// The first time before which a collective is ready that waits for others to get theirs;
  /// INT64_MAX if none waits.
  int64_t next_ns() const;
  /// Gives all that are ready before `ns` their times, for when nothing else can happen up to it.
  void set_times_before(int64_t ns);

 private:
  struct Rank {
    int64_t num_calls = 0;
    std::deque<std::shared_ptr<Operation>> without_time;  // in the order of the calls
  };

  static bool is_next(const Operation& operation);
  void set_time(std::shared_ptr<Operation> operation);
  void set_next_times();
  void remove(const std::shared_ptr<Operation>& operation);

  std::vector<Rank> ranks_;  // by task
  std::vector<std::shared_ptr<Operation>> waiting_;
  std::vector<std::shared_ptr<Operation>> next_;  // whose turn has come
};

}  // namespace accelerate::simulator
