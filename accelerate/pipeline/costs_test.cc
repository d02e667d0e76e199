#include "accelerate/pipeline/costs.h"

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/pipeline/check.h"

namespace accelerate::pipeline {
namespace {

using enum ScheduleKind;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

Schedule made(ScheduleKind kind, const PipelineShape& shape) {
  return make_schedule(kind, shape).value();
}

ScheduleTimes times_of(const Schedule& schedule, const PipelineCosts& costs) {
  const absl::StatusOr<ScheduleTimes> times = schedule_times(schedule, costs);
  EXPECT_TRUE(times.ok()) << times.status();
  return times.value_or(ScheduleTimes());
}

// A rank's forward pass and the halves of its backward pass take 20 ns each, in 1 or 2 stages.
PipelineCosts even_costs(int stages_per_rank, int64_t hop_ns = 0) {
  const int64_t each = 20 / stages_per_rank;
  return {.stages = {{each, each, each}}, .hop_ns = hop_ns};
}

// The event model in Python that was recorded beside PyTorch's and Megatron's schedules: makespans
// with free links, and with hops of 2 ns.
struct Makespan {
  ScheduleKind kind;
  int stages_per_rank;
  int ranks;
  int micro_batches;
  int64_t free_ns;
  int64_t hop_ns;
};

constexpr Makespan kMakespans[] = {
    {kGpipe, 1, 2, 2, 180, 184},          {k1f1b, 1, 2, 2, 180, 184},
    {kInterleaved, 2, 2, 2, 150, 162},    {kZeroBubbleH1, 1, 2, 2, 140, 144},
    {kZeroBubbleV, 2, 2, 2, 140, 148},    {kLoopedBreadthFirst, 2, 2, 2, 150, 162},
    {kGpipe, 1, 2, 4, 300, 304},          {k1f1b, 1, 2, 4, 300, 308},
    {kInterleaved, 2, 2, 4, 270, 282},    {kZeroBubbleH1, 1, 2, 4, 260, 268},
    {kZeroBubbleV, 2, 2, 4, 250, 256},    {kLoopedBreadthFirst, 2, 2, 4, 270, 274},
    {kGpipe, 1, 2, 8, 540, 544},          {k1f1b, 1, 2, 8, 540, 556},
    {kInterleaved, 2, 2, 8, 510, 522},    {kZeroBubbleH1, 1, 2, 8, 500, 508},
    {kZeroBubbleV, 2, 2, 8, 490, 496},    {kLoopedBreadthFirst, 2, 2, 8, 510, 514},
    {kGpipe, 1, 4, 4, 420, 432},          {k1f1b, 1, 4, 4, 420, 440},
    {kInterleaved, 2, 4, 4, 330, 358},    {kZeroBubbleH1, 1, 4, 4, 300, 320},
    {kZeroBubbleV, 2, 4, 4, 300, 324},    {kLoopedBreadthFirst, 2, 4, 4, 330, 358},
    {kGpipe, 1, 4, 8, 660, 672},          {k1f1b, 1, 4, 8, 660, 692},
    {kInterleaved, 2, 4, 8, 570, 598},    {kZeroBubbleH1, 1, 4, 8, 540, 564},
    {kZeroBubbleV, 2, 4, 8, 510, 536},    {kLoopedBreadthFirst, 2, 4, 8, 570, 582},
    {kGpipe, 1, 4, 16, 1140, 1152},       {k1f1b, 1, 4, 16, 1140, 1196},
    {kInterleaved, 2, 4, 16, 1050, 1078}, {kZeroBubbleH1, 1, 4, 16, 1020, 1044},
    {kZeroBubbleV, 2, 4, 16, 990, 1016},  {kLoopedBreadthFirst, 2, 4, 16, 1050, 1062},
    {kGpipe, 1, 8, 8, 900, 928},          {k1f1b, 1, 8, 8, 900, 952},
    {kInterleaved, 2, 8, 8, 690, 750},    {kZeroBubbleH1, 1, 8, 8, 620, 672},
    {kZeroBubbleV, 2, 8, 8, 620, 676},    {kLoopedBreadthFirst, 2, 8, 8, 690, 750},
    {kGpipe, 1, 8, 16, 1380, 1408},       {k1f1b, 1, 8, 16, 1380, 1460},
    {kInterleaved, 2, 8, 16, 1170, 1230}, {kZeroBubbleH1, 1, 8, 16, 1100, 1156},
    {kZeroBubbleV, 2, 8, 16, 1030, 1096}, {kLoopedBreadthFirst, 2, 8, 16, 1170, 1198},
    {kGpipe, 1, 8, 32, 2340, 2368},       {k1f1b, 1, 8, 32, 2340, 2476},
    {kInterleaved, 2, 8, 32, 2130, 2190}, {kZeroBubbleH1, 1, 8, 32, 2060, 2116},
    {kZeroBubbleV, 2, 8, 32, 1990, 2056}, {kLoopedBreadthFirst, 2, 8, 32, 2130, 2158},
};

TEST(ScheduleTimes, AreThoseOfTheRecordedEventModel) {
  for (const Makespan& row : kMakespans) {
    const Schedule schedule = made(row.kind, {row.ranks, row.stages_per_rank, row.micro_batches});
    const ScheduleTimes times = times_of(schedule, even_costs(row.stages_per_rank));
    EXPECT_EQ(times.makespan_ns, row.free_ns)
        << to_string(row.kind) << " " << row.ranks << " " << row.micro_batches;
    EXPECT_THAT(times.busy_ns, Each(60 * row.micro_batches));
    EXPECT_EQ(times_of(schedule, even_costs(row.stages_per_rank, 2)).makespan_ns, row.hop_ns)
        << to_string(row.kind) << " " << row.ranks << " " << row.micro_batches;
  }
}

struct ForwardMakespan {
  int ranks;
  int micro_batches;
  int64_t free_ns;
  int64_t hop_ns;
};

constexpr ForwardMakespan kForwardMakespans[] = {
    {2, 2, 60, 62},    {2, 4, 100, 102}, {2, 8, 180, 182},  {4, 4, 140, 146},  {4, 8, 220, 226},
    {4, 16, 380, 386}, {8, 8, 300, 314}, {8, 16, 460, 474}, {8, 32, 780, 794},
};

TEST(ScheduleTimes, OfForwardPassesAloneAreTheRecordedOnes) {
  for (const auto& [ranks, count, free_ns, hop_ns] : kForwardMakespans) {
    for (const ScheduleKind kind : {kGpipe, k1f1b, kZeroBubbleH1}) {
      const Schedule schedule =
          forward_passes(made(kind, {.ranks = ranks, .micro_batches = count}));
      EXPECT_EQ(times_of(schedule, even_costs(1)).makespan_ns, free_ns);
      EXPECT_EQ(times_of(schedule, even_costs(1, 2)).makespan_ns, hop_ns);
    }
  }
}

TEST(ScheduleTimes, HaveTheBubblesOfThePapers) {
  const auto share = [](ScheduleKind kind, int stages) {
    return times_of(made(kind, {4, stages, 8}), even_costs(stages)).bubble_share();
  };
  EXPECT_DOUBLE_EQ(share(kGpipe, 1), 9.0 / 33);  // 0.2727
  EXPECT_DOUBLE_EQ(share(k1f1b, 1), 9.0 / 33);
  EXPECT_DOUBLE_EQ(share(kInterleaved, 2), 4.5 / 28.5);  // 0.1579
  EXPECT_DOUBLE_EQ(share(kLoopedBreadthFirst, 2), 4.5 / 28.5);
  EXPECT_DOUBLE_EQ(share(kZeroBubbleH1, 1), 3.0 / 27);   // 0.1111
  EXPECT_DOUBLE_EQ(share(kZeroBubbleV, 2), 1.5 / 25.5);  // 0.0588
}

TEST(ScheduleTimes, WithAnyCostsAreTheClosedForms) {
  std::mt19937 draw(1);
  const auto pick = [&](const std::vector<int>& of) { return of[draw() % of.size()]; };
  const auto cost = [&] { return static_cast<int64_t>(draw() % 5 + 1); };
  for (int i = 0; i < 300; ++i) {
    const int p = pick({1, 2, 3, 4, 6, 8});
    const int m = pick({1, 2, 3, 5, p, 2 * p, 3 * p, 4 * p});
    const int v = pick({2, 3, 4});
    const int64_t f = cost();
    const int64_t input = cost();
    const int64_t weight = cost();
    const int64_t round = f + input + weight;
    const PipelineCosts costs = {.stages = {{f, input, weight}}};
    for (const ScheduleKind kind : {kGpipe, k1f1b}) {
      const Schedule schedule = made(kind, {.ranks = p, .micro_batches = m});
      EXPECT_EQ(times_of(schedule, costs).makespan_ns, (m + p - 1) * round);
      EXPECT_EQ(times_of(forward_passes(schedule), costs).makespan_ns, (m + p - 1) * f);
    }
    // A rank has v stages with these costs each.
    if (m >= p) {
      EXPECT_EQ(times_of(made(kLoopedBreadthFirst, {p, v, m}), costs).makespan_ns,
                (m * v + p - 1) * round);
    }
    if (m % p == 0) {
      EXPECT_EQ(times_of(made(kInterleaved, {p, v, m}), costs).makespan_ns,
                (m * v + p - 1) * round);
    }
    // The closed form of ZB-H1 is exact for balanced costs alone, and a bound for others.
    if (m >= p) {
      const Schedule schedule = made(kZeroBubbleH1, {.ranks = p, .micro_batches = m});
      EXPECT_GE(times_of(schedule, costs).makespan_ns, m * round + (p - 1) * (f + input - weight));
      EXPECT_EQ(times_of(schedule, {.stages = {{f, f, f}}}).makespan_ns, (3 * m + p - 1) * f);
    }
    if (m >= 2 * p - 1) {
      EXPECT_EQ(times_of(made(kZeroBubbleV, {p, 2, m}), {.stages = {{f, f, f}}}).makespan_ns,
                (6 * m + p - 1) * f);
    }
  }
}

// Ranks, micro-batches, forward pass, halves of the backward pass, hop, makespan.
struct UnevenMakespan {
  int ranks;
  int micro_batches;
  int64_t forward_ns;
  int64_t input_ns;
  int64_t weight_ns;
  int64_t hop_ns;
  int64_t makespan_ns;
};

constexpr UnevenMakespan kUnevenMakespans[] = {
    {4, 5, 7, 1, 2, 0, 71},   {4, 4, 9, 4, 1, 0, 92},   {6, 18, 2, 4, 2, 3, 260},
    {2, 2, 4, 1, 7, 0, 28},   {3, 3, 9, 3, 5, 3, 83},   {3, 3, 5, 9, 3, 0, 73},
    {8, 9, 6, 2, 9, 0, 195},  {8, 8, 4, 8, 9, 3, 267},  {4, 12, 8, 6, 5, 0, 255},
    {3, 4, 2, 5, 9, 3, 86},   {4, 12, 5, 2, 2, 3, 179}, {3, 6, 3, 8, 7, 0, 124},
    {2, 4, 6, 6, 8, 3, 96},   {2, 2, 5, 8, 2, 0, 41},   {4, 12, 5, 7, 6, 0, 237},
    {6, 12, 3, 2, 8, 0, 171},
};

TEST(ScheduleTimes, OfZeroBubbleH1WithUnevenCostsAreTheRecordedOnes) {
  for (const auto& [ranks, count, f, input, weight, hop, makespan] : kUnevenMakespans) {
    EXPECT_EQ(times_of(made(kZeroBubbleH1, {.ranks = ranks, .micro_batches = count}),
                       {.stages = {{f, input, weight}}, .hop_ns = hop})
                  .makespan_ns,
              makespan);
  }
}

TEST(ScheduleTimes, FollowTheCostsOfEachStage) {
  const auto check = [](ScheduleKind kind, int stages_per_rank, int64_t hop, int64_t makespan,
                        const std::vector<int64_t>& busy) {
    const Schedule schedule = made(kind, {4, stages_per_rank, 8});
    PipelineCosts costs = {.hop_ns = hop};
    for (int stage = 0; stage < schedule.stages; ++stage) {
      costs.stages.push_back({3 + stage % 3, 2 + stage % 2, 1 + stage % 4});
    }
    const ScheduleTimes times = times_of(schedule, costs);
    EXPECT_EQ(times.makespan_ns, makespan) << to_string(kind);
    EXPECT_EQ(times.busy_ns, busy) << to_string(kind);
    for (int rank = 0; rank < 4; ++rank) {
      const auto idle = static_cast<double>(makespan - busy[static_cast<size_t>(rank)]);
      EXPECT_DOUBLE_EQ(times.bubble_share(rank), idle / static_cast<double>(makespan));
    }
  };
  check(kInterleaved, 2, 0, 199, {104, 152, 144, 168});
  check(kInterleaved, 2, 1, 206, {104, 152, 144, 168});
  check(k1f1b, 1, 0, 105, {48, 72, 80, 80});
  check(k1f1b, 1, 1, 118, {48, 72, 80, 80});
  check(kZeroBubbleV, 2, 0, 172, {136, 136, 160, 136});
  check(kZeroBubbleV, 2, 1, 178, {136, 136, 160, 136});
}

TEST(ScheduleTimes, HaveTheSpanOfEachAction) {
  const ScheduleTimes times = times_of(made(k1f1b, {.ranks = 2, .micro_batches = 2}),
                                       {.stages = {{10, 15, 5}}, .hop_ns = 3});
  using Span = ScheduleTimes::Span;
  EXPECT_THAT(times.ranks[0], ElementsAre(Span{0, 10}, Span{10, 20}, Span{46, 66}, Span{76, 96}));
  EXPECT_THAT(times.ranks[1], ElementsAre(Span{13, 23}, Span{23, 43}, Span{43, 53}, Span{53, 73}));
  EXPECT_EQ(times.makespan_ns, 96);
}

TEST(ScheduleTimes, OfActionsThatTakeNoTimeHaveNoBubble) {
  const ScheduleTimes times =
      times_of(made(k1f1b, {.ranks = 2, .micro_batches = 2}), {.stages = {{0, 0, 0}}});
  EXPECT_EQ(times.makespan_ns, 0);
  EXPECT_EQ(times.bubble_share(), 0);
  EXPECT_EQ(times.bubble_share(1), 0);
}

TEST(ScheduleTimes, RefuseCostsThatAreNotThePipelines) {
  const Schedule schedule = made(k1f1b, {.ranks = 3, .micro_batches = 4});
  const auto refusal = [&](const PipelineCosts& costs) {
    return std::string(schedule_times(schedule, costs).status().message());
  };
  EXPECT_EQ(refusal({.stages = {{1, 1, 1}, {1, 1, 1}}}), "a pipeline of 3 stages has costs of 2");
  EXPECT_EQ(refusal({}), "a pipeline of 3 stages has costs of 0");
  EXPECT_EQ(refusal({.stages = {{1, 1, 1}}, .hop_ns = -1}), "a hop takes -1 ns");
  EXPECT_EQ(refusal({.stages = {{1, 1, 1}, {1, -2, 1}, {1, 1, 1}}}),
            "a pass of stage 1 takes -2 ns");
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(refusal({.stages = {{kMost / 12, 1, 1}}}), HasSubstr("more than can be counted"));
  EXPECT_THAT(refusal({.stages = {{1, 1, 1}}, .hop_ns = kMost}),
              HasSubstr("more than can be counted"));
}

TEST(ScheduleTimes, RefuseWhatTheCheckRefuses) {
  Schedule schedule = made(k1f1b, {.ranks = 2, .micro_batches = 2});
  schedule.ranks[1].pop_back();
  const absl::Status status = schedule_times(schedule, even_costs(1)).status();
  EXPECT_EQ(status, check_schedule(schedule));
  EXPECT_THAT(std::string(status.message()), HasSubstr("1B1 is missing"));
}

}  // namespace
}  // namespace accelerate::pipeline
