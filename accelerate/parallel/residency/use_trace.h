/// The order in which one step uses groups of parameters: recorded once, expected afterwards.
///
/// Uses of one group that follow each other count as one. A step that does not do what was recorded
/// is recorded anew from there on. One that ends early, as an evaluation that no backward pass
/// follows, leaves the record as it is.
/// Threads: one at a time. Local.
/// Mirrors: deepspeed.runtime.zero PartitionedParameterCoordinator, whose trace is of modules.
#pragma once

#include <cstddef>
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
    if (!records_ && position_ < uses_.size() && uses_[position_] == group) {
      ++position_;
      return true;
    }
    return record(group);
  }
  /// What the step used so far is all that it uses. Returns whether that was recorded just now.
  bool end();

  /// The group that is expected to be used after the last one; kNone: unknown, or none.
  int next() const { return !records_ && position_ < uses_.size() ? uses_[position_] : kNone; }
  /// What is recorded.
  c10::ArrayRef<int> uses() const { return uses_; }

 private:
  bool record(int group);

  std::vector<int> uses_;
  size_t position_ = 0;  // how many of the uses this step has made
  bool records_ = true;
};

}  // namespace accelerate
