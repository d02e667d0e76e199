/// Whether ranks that share parameters do the same in a step: use the same groups of parameters in
/// the same order, and reduce gradients of the same parameters.
///
/// Collective: what compares. Ranks must begin the same comparison, or at least a comparison, at
///             the same time: where they do different things before their next collective, they
///             find out.
/// Errors:  c10::Error on all ranks of the group, naming two ranks and the parameters in which they
///          differ.
/// Threads: the rank's thread, and LibTorch's backward threads while it waits for them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "accelerate/comm/process_group.h"
#include "accelerate/parallel/residency/use_trace.h"

namespace accelerate {

/// What a rank says of a parameter's gradient.
enum class GradientPresence : char { kHas = '+', kLacks = '-', kNotTrained = '.' };

/// The parameters of a group, as in "parameters "a" to "b"".
std::string text_of_parameters(const std::string& first, const std::string& last);

class StepComparison {
 public:
  /// The marks of a group's parameters, one after the other, as this rank has them now.
  using MarksOf = absl::FunctionRef<std::string(int group)>;

  /// The ranks that have a shard each, and those with the same shard of other replicas, or null.
  StepComparison(ProcessGroupPtr shards, ProcessGroupPtr replicas)
      : shards_(std::move(shards)), replicas_(std::move(replicas)) {}

  /// The names of the next group's parameters. Local.
  void add_group(std::vector<std::string> names) { groups_.push_back(std::move(names)); }

  /// Before a group is used, or where a step ends (UseTrace::kNone). Ranks with a shard each.
  void compare_use(int group) const;
  /// Before a group's gradients are reduced, or where a backward pass ends (UseTrace::kNone). All
  /// ranks.
  void compare_reduction(int group, MarksOf marks) const;
  /// Compares the steps since the last comparison, if a rank's trace changed. `reductions` are the
  /// reductions of the backward pass that ends, with the marks of their gradients. All ranks.
  /// Traces are marked as compared, or start anew if ranks differ.
  void compare_steps(UseTrace& trains, UseTrace& evaluates, UseTrace& reductions,
                     MarksOf marks) const;

 private:
  // What a rank says, by its number in the job.
  struct RankReport {
    std::string rank, text;
  };

  std::vector<RankReport> exchange(std::string text, bool with_replicas) const;
  std::string text_of_group(int group) const;
  std::string text_of_action(const RankReport& saying) const;
  void check_same_action(const RankReport& first, const RankReport& other) const;
  void check_same_marks(const RankReport& first, const RankReport& other) const;

  const ProcessGroupPtr shards_, replicas_;
  std::vector<std::vector<std::string>> groups_;
};

}  // namespace accelerate
