/// In which order the ranks of a pipeline have their forward and backward passes.
///
/// A pipeline cuts a model into stages, and a batch into micro-batches. A schedule is data: for
/// each rank the list of its actions, one after another. Everything else follows from the lists:
/// which rank has a stage, what is sent to whom (messages.h), how long a batch takes (costs.h), and
/// how much a rank keeps meanwhile (check.h). So a schedule of a user is as good as one made here.
///
///   const absl::StatusOr<Schedule> schedule =
///       make_schedule(ScheduleKind::kInterleaved,
///                     {.ranks = 4, .stages_per_rank = 2, .micro_batches = 8});
///
/// In all schedules made here the backward passes of a stage go through the micro-batches in their
/// order. So a stage's gradients are the same sums in each, to the bit.
/// Errors:  absl::InvalidArgument in one line, with the nearest numbers that work.
/// Threads: values and pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/enum_text.h"

namespace accelerate::pipeline {

/// What a stage does with a micro-batch.
enum class Pass {
  kForward,
  /// The gradients of the stage's input and of its weights.
  kBackward,
  /// The first half of a backward pass, which the stage before waits for.
  kInputGradient,
  /// The second half, which may come any time later.
  kWeightGradient,
};

struct Action {
  Pass pass = Pass::kForward;
  int stage = 0;
  int micro_batch = 0;

  friend auto operator<=>(const Action&, const Action&) = default;
};

struct Schedule {
  int stages = 0;
  int micro_batches = 0;
  /// By rank along the pipeline.
  std::vector<std::vector<Action>> ranks = {};

  bool operator==(const Schedule&) const = default;
};

enum class ScheduleKind {
  /// All forward passes, then all backward passes. One stage a rank.
  kGpipe,
  /// As many forward passes as there are ranks from here to the end, then a backward pass and a
  /// forward pass by turns. One stage a rank.
  k1f1b,
  /// The same with several stages a rank, through which groups of micro-batches go by turns: less
  /// waiting, more messages. Megatron's and PyTorch's order.
  kInterleaved,
  /// GPipe with several stages a rank: all micro-batches go through one of them, then through the
  /// next one.
  kLoopedBreadthFirst,
  /// 1F1B with backward passes in halves: weights' gradients fill the time in which 1F1B waits
  /// (zero bubble, H1). No rank keeps more than the first one does in 1F1B. One stage a rank.
  kZeroBubbleH1,
  /// Halves, too. With p ranks, rank r has stages r and 2p - 1 - r, so that the last stage is on
  /// the first rank (zero bubble, V). Two stages a rank.
  kZeroBubbleV,
};

/// The kind with this text ("gpipe", "1f1b", "interleaved", "looped_bfs", "zb_h1", "zb_v"), in any
/// case.
absl::StatusOr<ScheduleKind> parse_schedule_kind(absl::string_view text);

struct PipelineShape {
  int ranks = 1;
  int stages_per_rank = 1;
  int micro_batches = 1;
};

/// Rank r has the stages r, r + ranks, r + 2 ranks and so on, but for kZeroBubbleV. Fewer
/// micro-batches than ranks are allowed.
///
/// kInterleaved needs micro-batches that divide into max(1, micro_batches / ranks) groups of the
/// same size, as PyTorch does.
/// Errors: sizes below 1; more than ten million actions; a number of stages a rank that the kind
///         does not have; groups of different sizes.
absl::StatusOr<Schedule> make_schedule(ScheduleKind kind, const PipelineShape& shape);

/// The forward passes alone, in the schedule's order: what an evaluation runs.
Schedule forward_passes(const Schedule& schedule);

/// The rank of each stage; -1 for a stage without actions. Actions have stages of the schedule.
std::vector<int> stage_ranks(const Schedule& schedule);

/// "2F0", "2B0", "2I0" and "2W0": stage 2, and micro-batch 0.
std::string action_text(const Action& action);

/// Where in a schedule an action is.
struct ActionPlace {
  size_t rank = 0;
  size_t index = 0;

  bool operator==(const ActionPlace&) const = default;
};

inline const Action& action_at(const Schedule& schedule, const ActionPlace& place) {
  return schedule.ranks[place.rank][place.index];
}

/// The places in a schedule that has each action once, which check_schedule (check.h) finds out.
class ActionIndex {
 public:
  explicit ActionIndex(const Schedule& schedule);

  /// The places of the actions that this one needs: of a forward pass that of the stage before; of
  /// a backward pass, or its first half, that of the stage behind and the stage's forward pass; of
  /// the second half the first one.
  std::vector<ActionPlace> needs(const Action& action) const;

  /// The place of the forward pass.
  const ActionPlace& forward(int stage, int micro_batch) const {
    return forward_[cell(stage, micro_batch)];
  }
  /// The place of the backward pass or of its first half, in a schedule with backward passes.
  const ActionPlace& gradient(int stage, int micro_batch) const {
    return gradients_[cell(stage, micro_batch)];
  }

 private:
  size_t cell(int stage, int micro_batch) const {
    return static_cast<size_t>(stage) * micro_batches_ + static_cast<size_t>(micro_batch);
  }

  const int stages_;
  const size_t micro_batches_;
  std::vector<ActionPlace> forward_;
  std::vector<ActionPlace> gradients_;
};

}  // namespace accelerate::pipeline

namespace accelerate {

ACCELERATE_ENUM_TEXTS_IN_ANY_CASE(pipeline::ScheduleKind, "pipeline schedule", "gpipe", "1f1b",
                                  "interleaved", "looped_bfs", "zb_h1", "zb_v")

/// The letters of actions.
ACCELERATE_ENUM_TEXTS(pipeline::Pass, "pass", "F", "B", "I", "W")

}  // namespace accelerate
