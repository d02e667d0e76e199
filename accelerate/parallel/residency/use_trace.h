/// The order in which one step uses groups of parameters, or reduces their gradients: recorded
/// once, expected afterwards.
///
/// Consecutive uses of the same group count once. A step that does not do what was recorded
/// is recorded anew from there on. One that ends early, as an evaluation that no backward pass
/// follows, leaves the record as it is.
///
/// Ranks are to have equal traces. They can compare the first step use by use; after that a rank
/// knows by itself whether it has departed() from what they have compared, and history() tells two
/// ranks apart that have not done the same since.
/// Threads: one at a time. Local.
/// Mirrors: deepspeed.runtime.zero PartitionedParameterCoordinator, whose trace is of modules.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <c10/util/ArrayRef.h>

namespace accelerate {

class UseTrace {
 public:
  static constexpr int kNone = -1;

  /// A step begins.
  void begin_step();
  /// A group is used. Returns whether it was expected, or the step is being recorded.
  bool use(int group) {
    if (position_ > 0 && uses_[position_ - 1] == group) return true;
    add_to_history(static_cast<uint64_t>(group));
    if (!records_ && position_ < uses_.size() && uses_[position_] == group) {
      ++position_;
      return true;
    }
    return record(group);
  }
  /// What the step used so far is all that it uses. Returns whether it is the first step.
  bool end();

  /// Whether no step has ended yet.
  bool is_first() const { return is_first_; }
  /// The group that is expected to be used after the last one, or `later` uses after that; kNone:
  /// unknown, or none.
  int next(size_t later = 0) const {
    const size_t position = position_ + later;
    return !records_ && position < uses_.size() ? uses_[position] : kNone;
  }
  /// The group that the next step is expected to use first; kNone: unknown.
  int first() const { return !records_ && !uses_.empty() ? uses_.front() : kNone; }
  /// The uses of other groups between the group's use that is running, or comes next, and the one
  /// after it. Absent: it has none in this step, or none that is known.
  std::optional<c10::ArrayRef<int>> until_reuse(int group) const;
  /// What this step has used so far.
  c10::ArrayRef<int> uses() const { return c10::ArrayRef<int>(uses_).slice(0, position_); }

  /// Whether a step but the first one has done something else than was recorded, since
  /// mark_compared().
  bool departed() const { return departed_; }
  /// The step does something else than was recorded, beside its uses; `what` tells it from others.
  void depart(uint64_t what) {
    add_to_history(what);
    departed_ = true;
  }
  /// A hash of all uses since mark_compared().
  uint64_t history() const { return history_; }
  /// Ranks have compared what they did.
  void mark_compared();

 private:
  void add_to_history(uint64_t what) { history_ = (history_ ^ (what + 1)) * 0x9e3779b97f4a7c15; }
  bool record(int group);

  std::vector<int> uses_;
  size_t position_ = 0;   // how many of the uses this step has made
  size_t early_end_ = 0;  // the last step's that did less than was recorded
  bool records_ = true;
  bool is_first_ = true;
  bool departed_ = false;
  uint64_t history_ = 0;
};

}  // namespace accelerate
