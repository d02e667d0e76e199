/// Decides when the time of a collective can be worked out.
///
/// The links that a collective shares with those of other groups depend on which of them are known.
/// So that a time does not depend on the order in which ranks run, a collective gets its time after
/// all those that its members called before it. If nothing else can happen, because a member waits
/// for something that a later call would bring, those whose members have all joined get theirs,
/// from the one that was ready first.
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

  /// All members have called it, and it has been carried out: it is settled now or later.
  void carried_out(const std::shared_ptr<Operation>& operation);

  /// The collective has failed.
  void drop(const std::shared_ptr<Operation>& operation);

  /// Whether collectives that have been carried out wait for others.
  bool has_waiting() const { return !waiting_.empty(); }
  /// For the time when nothing else can happen.
  void settle_waiting();

 private:
  struct Rank {
    int64_t num_calls = 0;
    std::deque<std::shared_ptr<Operation>> without_time;  // in the order of the calls
  };

  static bool is_next(const Operation& operation);
  void settle(std::shared_ptr<Operation> operation);
  void settle_next();
  void remove(const std::shared_ptr<Operation>& operation);

  std::vector<Rank> ranks_;  // by task
  std::vector<std::shared_ptr<Operation>> waiting_;
  std::vector<std::shared_ptr<Operation>> next_;  // whose turn has come
};

}  // namespace accelerate::simulator
