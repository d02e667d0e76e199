/// Decides when the time of a collective can be worked out.
///
/// The links that a collective shares with those of other groups depend on which of them are known.
/// So that a time does not depend on the order in which ranks run, a collective gets its time after
/// all those that its members called before it. Where one of those does not come, because a rank is
/// late or missing, the collective gets its time out of turn, as an event of the scheduler: when
/// nothing else can happen up to the clock of a host that waits for it, or else up to the moment at
/// which it is ready.
///
/// Cost: constant for each member of a collective, but linear in those that wait for their turn.
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

  /// All members have called it, and it has been carried out: its turn comes now or later.
  void carried_out(const std::shared_ptr<Operation>& operation);

  /// Takes a collective whose turn has come; null if there is none. It is to get its time, and then
  /// to be removed.
  std::shared_ptr<Operation> take_next();

  /// The collective has its time or has failed: those behind it have their turn.
  void remove(const std::shared_ptr<Operation>& operation);

  /// The calls of the task that have no time yet, and have not failed, in their order.
  std::vector<std::shared_ptr<Operation>> without_time(int task) const;

  /// The time of the next event, at which admit_next_waiting() is to be called, and that at which
  /// its collective is ready; INT64_MAX if none waits for its turn.
  int64_t next_ns() const;
  int64_t next_ready_ns() const;
  /// The turn of the collective has come although others are before it.
  void admit_next_waiting() { next_.push_back(next_waiting()); }
  bool has_waiting() const { return !waiting_.empty(); }

 private:
  struct Rank {
    int64_t num_calls = 0;
    std::deque<std::shared_ptr<Operation>> without_time;  // in the order of the calls
  };

  static bool is_next(const Operation& operation);
  std::shared_ptr<Operation> next_waiting() const;

  std::vector<Rank> ranks_;  // by task
  std::vector<std::shared_ptr<Operation>> waiting_;
  std::vector<std::shared_ptr<Operation>> next_;  // whose turn has come
};

}  // namespace accelerate::simulator
