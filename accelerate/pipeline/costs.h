/// How long a schedule takes, how much of that its ranks wait, and what they keep.
///
/// A model of events in integers, so that the same schedule and costs give the same figures
/// everywhere. A rank has one action at a time, in the order of its list, and begins it as soon as
/// it is free and what the action needs is there. What comes from another rank is there one hop
/// after it was computed; a hop takes time of no rank, and any number travel at once.
/// Units:   nanoseconds, or any other unit of time that all costs have.
/// Errors:  absl::InvalidArgument in one line.
/// Threads: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "accelerate/pipeline/schedule.h"

namespace accelerate::pipeline {

/// What a stage takes for a micro-batch. A whole backward pass takes both halves' time.
struct StageCosts {
  int64_t forward_ns = 0;
  int64_t input_gradient_ns = 0;
  int64_t weight_gradient_ns = 0;
};

struct PipelineCosts {
  /// One for each stage; one alone stands for all.
  std::vector<StageCosts> stages = {};
  /// From the end of an action to the time at which another rank has its result.
  int64_t hop_ns = 0;
};

struct ScheduleTimes {
  struct Span {
    int64_t start_ns = 0;
    int64_t end_ns = 0;

    bool operator==(const Span&) const = default;
  };

  /// The time of each action, as in the schedule.
  std::vector<std::vector<Span>> ranks = {};
  /// From the start of the first action to the end of the last one.
  int64_t makespan_ns = 0;
  /// By rank, the time of its actions.
  std::vector<int64_t> busy_ns = {};

  /// The part of the makespan in which the rank waits, from 0 to 1; 0 if all takes no time.
  double bubble_share(int rank) const;
  /// The same of all ranks together.
  double bubble_share() const;
};

/// Errors: those of check_schedule (check.h); costs that are negative, not of the schedule's number
/// of stages, or so large that their sum is not a 64-bit integer.
absl::StatusOr<ScheduleTimes> schedule_times(const Schedule& schedule, const PipelineCosts& costs);

}  // namespace accelerate::pipeline
