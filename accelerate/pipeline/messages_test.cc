#include "accelerate/pipeline/messages.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "accelerate/pipeline/check.h"

namespace accelerate::pipeline {
namespace {

using enum ScheduleKind;
using testing::ElementsAre;
using testing::IsEmpty;

using Steps = std::vector<std::vector<Step>>;

Schedule made(ScheduleKind kind, const PipelineShape& shape) {
  return make_schedule(kind, shape).value();
}

std::string text_of(const Message& message) {
  return absl::StrCat(message.from_stage, message.is_gradient() ? "<" : ">", message.to_stage, " ",
                      message.micro_batch);
}

// Channels of two ranks under rendezvous: a message moves when it is its channel's first and the
// receiver waits for one from there. A rank goes on behind its sends at once.
class Rendezvous {
 public:
  explicit Rendezvous(const Steps& steps) : steps_(steps), next_(steps.size()) {}

  // Ranks have their turns in an order that the seed draws. Returns what goes wrong.
  std::string run(unsigned seed) {
    std::mt19937 draw(seed);
    for (;;) {
      std::vector<size_t> ready;
      for (size_t rank = 0; rank < steps_.size(); ++rank) {
        if (next_[rank] < steps_[rank].size() && has_what_it_needs(rank)) ready.push_back(rank);
      }
      if (!problem_.empty()) return problem_;
      if (ready.empty()) break;
      advance(ready[draw() % ready.size()]);
    }
    for (size_t rank = 0; rank < steps_.size(); ++rank) {
      if (next_[rank] < steps_[rank].size()) return absl::StrCat("rank ", rank, " is stuck");
    }
    for (const auto& [channel, messages] : channels_) {
      if (!messages.empty()) return absl::StrCat(text_of(messages.front()), " is not received");
    }
    return "";
  }

 private:
  bool has_what_it_needs(size_t rank) {
    const std::optional<Message>& receive = steps_[rank][next_[rank]].receive;
    if (!receive) return true;
    const std::deque<Message>& channel = channels_[{receive->from_rank, receive->to_rank}];
    if (channel.empty()) return false;
    if (channel.front() == *receive) return true;
    problem_ = absl::StrCat("rank ", rank, " wants ", text_of(*receive), " and gets ",
                            text_of(channel.front()));
    return false;
  }

  void advance(size_t rank) {
    const Step& step = steps_[rank][next_[rank]++];
    if (step.receive) channels_[{step.receive->from_rank, step.receive->to_rank}].pop_front();
    done_.insert({step.action.pass == Pass::kForward, step.action.stage, step.action.micro_batch});
    for (const Message& message : step.sends) {
      if (!done_.contains({!message.is_gradient(), message.from_stage, message.micro_batch})) {
        problem_ = absl::StrCat(text_of(message), " is sent before it is computed");
      }
      if (message.from_rank != static_cast<int>(rank)) problem_ = "a send of another rank";
      channels_[{message.from_rank, message.to_rank}].push_back(message);
    }
  }

  const Steps& steps_;
  std::vector<size_t> next_;
  std::map<std::pair<int, int>, std::deque<Message>> channels_;
  // Forward passes, and passes with an input gradient; W of the same stage is behind that.
  std::set<std::tuple<bool, int, int>> done_;
  std::string problem_;
};

// The steps with each message directly behind the action that makes it.
Steps sent_at_once(const Schedule& schedule) {
  const ActionIndex index(schedule);
  Steps steps = schedule_steps(schedule);
  std::vector<Message> all;
  for (std::vector<Step>& rank : steps) {
    for (Step& step : rank) {
      all.insert(all.end(), step.sends.begin(), step.sends.end());
      step.sends.clear();
    }
  }
  for (const Message& message : all) {
    const ActionPlace& made_at = message.is_gradient()
                                     ? index.gradient(message.from_stage, message.micro_batch)
                                     : index.forward(message.from_stage, message.micro_batch);
    steps[made_at.rank][made_at.index].sends.push_back(message);
  }
  return steps;
}

std::vector<Schedule> all_schedules() {
  std::vector<Schedule> all;
  for (const ScheduleKind kind : values<ScheduleKind>()) {
    for (const int ranks : {1, 2, 3, 4, 6, 8}) {
      for (const int stages : {1, 2, 3, 4}) {
        for (const int count : std::set<int>{1, 2, 3, 5, ranks, 2 * ranks, 3 * ranks, 4 * ranks}) {
          absl::StatusOr<Schedule> schedule = make_schedule(kind, {ranks, stages, count});
          if (!schedule.ok()) continue;
          all.push_back(forward_passes(*schedule));
          all.push_back(*std::move(schedule));
        }
      }
    }
  }
  return all;
}

TEST(ScheduleSteps, HaveTheMessagesOfActions) {
  const Steps steps = schedule_steps(made(k1f1b, {.ranks = 2, .micro_batches = 1}));
  ASSERT_EQ(steps.size(), 2U);
  const Message output = {.from_stage = 0, .to_stage = 1, .from_rank = 0, .to_rank = 1};
  const Message gradient = {.from_stage = 1, .to_stage = 0, .from_rank = 1, .to_rank = 0};
  ASSERT_EQ(steps[0].size(), 2U);
  EXPECT_EQ(steps[0][0].receive, std::nullopt);
  EXPECT_THAT(steps[0][0].sends, ElementsAre(output));
  EXPECT_EQ(steps[0][1].receive, gradient);
  EXPECT_THAT(steps[0][1].sends, IsEmpty());
  ASSERT_EQ(steps[1].size(), 2U);
  EXPECT_EQ(steps[1][0].receive, output);
  EXPECT_THAT(steps[1][0].sends, IsEmpty());
  EXPECT_EQ(steps[1][1].receive, std::nullopt);
  EXPECT_THAT(steps[1][1].sends, ElementsAre(gradient));
}

// One to the next stage and one back for each micro-batch, but for stages on the same rank.
TEST(ScheduleSteps, SendEachMessageOnce) {
  const auto sends_of = [](const Schedule& schedule) {
    size_t sends = 0;
    for (const std::vector<Step>& rank : schedule_steps(schedule)) {
      for (const Step& step : rank) sends += step.sends.size();
    }
    return sends;
  };
  EXPECT_EQ(sends_of(made(kInterleaved, {4, 2, 8})), 2U * 7 * 8);
  EXPECT_EQ(sends_of(made(kZeroBubbleV, {4, 2, 8})), 2U * 6 * 8);
  EXPECT_EQ(sends_of(forward_passes(made(kGpipe, {4, 1, 8}))), 3U * 8);
  EXPECT_EQ(sends_of(made(kLoopedBreadthFirst, {1, 4, 8})), 0U);
}

TEST(ScheduleSteps, NeverComeToAStandstillUnderRendezvous) {
  const std::vector<Schedule> schedules = all_schedules();
  EXPECT_GT(schedules.size(), 700U);
  for (const Schedule& schedule : schedules) {
    const Steps steps = schedule_steps(schedule);
    EXPECT_EQ(Rendezvous(steps).run(1), "")
        << schedule.ranks.size() << " ranks, " << schedule.stages << " stages, "
        << schedule.micro_batches << " micro-batches";
  }
}

TEST(ScheduleSteps, DoNotDependOnWhichRankIsSlow) {
  for (const ScheduleKind kind : {kInterleaved, kZeroBubbleV, kLoopedBreadthFirst}) {
    for (const int ranks : {2, 4}) {
      const Steps steps = schedule_steps(made(kind, {ranks, 2, 2 * ranks}));
      for (unsigned seed = 0; seed < 50; ++seed) EXPECT_EQ(Rendezvous(steps).run(seed), "") << seed;
    }
  }
}

// In zb_v outputs and gradients go the same way. Sent as they are ready, the receiver would take
// one for the other.
TEST(ScheduleSteps, PutAMessageOffThatItsReceiverNeedsLater) {
  const Schedule schedule =
      made(kZeroBubbleV, {.ranks = 4, .stages_per_rank = 2, .micro_batches = 8});
  const Steps at_once = sent_at_once(schedule);
  EXPECT_THAT(Rendezvous(at_once).run(1), testing::HasSubstr("wants"));
  EXPECT_EQ(Rendezvous(schedule_steps(schedule)).run(1), "");
}

TEST(ScheduleSteps, SendAtOnceWhereTheOrderIsTheSame) {
  for (const ScheduleKind kind : {kGpipe, k1f1b, kZeroBubbleH1}) {
    for (const int ranks : {2, 4, 8}) {
      const Schedule schedule = made(kind, {.ranks = ranks, .micro_batches = 2 * ranks});
      const Steps steps = schedule_steps(schedule);
      const Steps at_once = sent_at_once(schedule);
      for (size_t rank = 0; rank < steps.size(); ++rank) {
        for (size_t i = 0; i < steps[rank].size(); ++i) {
          EXPECT_EQ(steps[rank][i].sends, at_once[rank][i].sends) << to_string(kind);
        }
      }
    }
  }
}

}  // namespace
}  // namespace accelerate::pipeline
