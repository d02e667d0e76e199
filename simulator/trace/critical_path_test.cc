#include "simulator/trace/critical_path.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "simulator/trace/recorder.h"

namespace accelerate::simulator {
namespace {

using ::testing::ElementsAre;

constexpr int kCommunication = 1;

class CriticalPathTest : public ::testing::Test {
 protected:
  void SetUp() override { recorder_.step(1000); }

  void kernel(int64_t start_ns, int64_t end_ns, const char* name, StartedBy started_by,
              int rank = 0, double flops = 0) {
    const uint32_t number = recorder_.intern(name);
    recorder_.slice({.start_ns = start_ns,
                     .end_ns = end_ns,
                     .rank = rank,
                     .name = number,
                     .started_by = started_by});
    recorder_.op_cost(rank, number, end_ns - start_ns, flops, 1);
  }

  int64_t operation(const char* group, int last_rank) {
    return recorder_.operation({.name = recorder_.intern("ALLREDUCE"),
                                .group = recorder_.intern(group),
                                .ranks = {0, 1, 2},
                                .last_rank = last_rank});
  }

  // A member's part, and its wait if it arrived before the start.
  void member(int64_t operation, int rank, int64_t arrived_ns, int64_t start_ns, int64_t end_ns,
              StartedBy started_by) {
    Slice slice{.start_ns = arrived_ns,
                .end_ns = start_ns,
                .rank = rank,
                .stream = kCommunication,
                .name = recorder_.intern("wait"),
                .kind = SliceKind::kWait,
                .started_by = started_by,
                .operation = operation};
    if (arrived_ns < start_ns) {
      recorder_.slice(slice);
      slice.started_by = StartedBy::kMembers;
    }
    slice.start_ns = start_ns;
    slice.end_ns = end_ns;
    slice.name = recorder_.intern("ALLREDUCE");
    slice.kind = SliceKind::kCollective;
    recorder_.slice(slice);
  }

  // Ends the step and the run.
  CriticalPath path_until(int64_t end_ns) {
    recorder_.step(end_ns);
    trace_ = recorder_.finish({.device = "h100"});
    std::optional<CriticalPath> path = critical_path(trace_);
    EXPECT_TRUE(path.has_value());
    return path.value_or(CriticalPath{});
  }

  // "matrix products 300", by time.
  std::vector<std::string> texts(const CriticalPath& path) const {
    std::vector<std::string> texts;
    int64_t sum_ns = 0;
    for (const PathShare& share : path.shares) {
      std::string text = to_string(share.part);
      if (share.name != 0) {
        absl::StrAppend(&text, " ", trace_.names[share.name], " of ", trace_.names[share.group]);
      }
      if (share.rank >= 0) absl::StrAppend(&text, " ", share.rank);
      texts.push_back(absl::StrCat(text, " ", share.total_ns));
      sum_ns += share.total_ns;
    }
    EXPECT_EQ(sum_ns, path.end_ns - path.start_ns);
    return texts;
  }

  Recorder recorder_{{.world_size = 3}};
  Trace trace_;
};

TEST_F(CriticalPathTest, FollowsAStreamAndTheHost) {
  kernel(990, 1100, "aten::mm", StartedBy::kHost, 0, 1e6);  // 100 of it in the step
  kernel(1100, 1150, "aten::add", StartedBy::kStream);
  // The device is idle until the host comes.
  kernel(1200, 1260, "aten::_flash_attention_forward", StartedBy::kHost, 0, 1e6);
  EXPECT_THAT(texts(path_until(1260)), ElementsAre("host 200", "attention 60"));
}

TEST_F(CriticalPathTest, FollowsTheHostThroughItsWaits) {
  kernel(1010, 1300, "aten::mm", StartedBy::kHost, 0, 1e6);
  recorder_.slice({.start_ns = 1300,
                   .end_ns = 1340,
                   .rank = 0,
                   .name = recorder_.intern("copy to host"),
                   .kind = SliceKind::kCopy,
                   .started_by = StartedBy::kStream});
  recorder_.host_wait(0, 1020, 1340);
  kernel(1350, 1400, "aten::add", StartedBy::kHost);
  recorder_.host_wait(0, 1355, 1375, SliceKind::kDisk);
  kernel(1400, 1450, "aten::add", StartedBy::kHost);
  EXPECT_THAT(texts(path_until(1450)), ElementsAre("matrix products 290", "other kernels 50",
                                                   "host 50", "copies 40", "disk 20"));
}

TEST_F(CriticalPathTest, TakesWhatAStreamWaitedForFromAnotherOne) {
  kernel(1000, 1100, "aten::mm", StartedBy::kHost, 0, 1e6);
  const int64_t reduction = operation("dp", 0);
  member(reduction, 0, 1100, 1100, 1170, StartedBy::kEvent);
  kernel(1100, 1150, "aten::gelu", StartedBy::kStream);  // hides 50 of the collective, in vain
  kernel(1170, 1200, "aten::add", StartedBy::kEvent);
  EXPECT_THAT(
      texts(path_until(1200)),
      ElementsAre("matrix products 100", "communication ALLREDUCE of dp 70", "other kernels 30"));
}

TEST_F(CriticalPathTest, GoesOnAtTheLastMember) {
  kernel(1000, 1100, "aten::mm", StartedBy::kHost, 0, 1e6);
  kernel(1000, 1250, "aten::mm", StartedBy::kHost, 1, 1e6);
  kernel(1000, 1020, "aten::mm", StartedBy::kHost, 2, 1e6);
  const int64_t reduction = operation("dp", 1);
  member(reduction, 0, 1100, 1250, 1300, StartedBy::kEvent);
  member(reduction, 1, 1250, 1250, 1300, StartedBy::kEvent);
  member(reduction, 2, 1020, 1250, 1300, StartedBy::kEvent);
  kernel(1300, 1310, "aten::add", StartedBy::kEvent);
  const CriticalPath path = path_until(1310);
  // Rank 0 waits from 1100 to 1250; before, the straggler's time is a step's as any other.
  EXPECT_THAT(texts(path), ElementsAre("waiting for a straggler 1 150", "matrix products 100",
                                       "communication ALLREDUCE of dp 50", "other kernels 10"));
  EXPECT_THAT(path.ranks, ElementsAre(0, 1));
  ASSERT_FALSE(path.longest.empty());
  EXPECT_EQ(path.longest[0].rank, 1);
  EXPECT_EQ(trace_.names[path.longest[0].name], "aten::mm");
}

TEST_F(CriticalPathTest, FindsOneStragglerBehindAnother) {
  kernel(1000, 1050, "aten::mm", StartedBy::kHost, 0, 1e6);
  kernel(1000, 1080, "aten::mm", StartedBy::kHost, 1, 1e6);
  kernel(1000, 1200, "aten::mm", StartedBy::kHost, 2, 1e6);
  const int64_t first = operation("tp", 2);
  member(first, 1, 1080, 1200, 1220, StartedBy::kEvent);
  member(first, 2, 1200, 1200, 1220, StartedBy::kEvent);
  const int64_t second = operation("dp", 1);
  member(second, 0, 1050, 1220, 1300, StartedBy::kEvent);
  member(second, 1, 1220, 1220, 1300, StartedBy::kStream);
  // Rank 0 waited for rank 1 from 1050 on, and that for rank 2 from 1080 to 1200.
  EXPECT_THAT(texts(path_until(1300)),
              ElementsAre("waiting for a straggler 2 150", "communication ALLREDUCE of dp 80",
                          "matrix products 50", "waiting for a straggler 1 20"));
}

TEST_F(CriticalPathTest, InfersWhatIsNotRecorded) {
  kernel(1000, 1100, "aten::mm", StartedBy::kUnknown, 0, 1e6);
  kernel(1000, 1120, "aten::mm", StartedBy::kUnknown, 1, 1e6);
  const int64_t reduction = operation("dp", 1);
  member(reduction, 0, 1100, 1120, 1150, StartedBy::kUnknown);
  member(reduction, 1, 1120, 1120, 1150, StartedBy::kUnknown);
  kernel(1150, 1160, "aten::add", StartedBy::kUnknown);
  EXPECT_THAT(texts(path_until(1160)),
              ElementsAre("matrix products 100", "communication ALLREDUCE of dp 30",
                          "waiting for a straggler 1 20", "other kernels 10"));
}

// Pieces of work without a length must not lead in a circle.
TEST_F(CriticalPathTest, EndsWithWorkThatTakesNoTime) {
  kernel(1000, 1100, "aten::mm", StartedBy::kHost, 0, 1e6);
  for (int i = 0; i < 3; ++i) kernel(1100, 1100, "aten::add", StartedBy::kEvent);
  const int64_t barrier = operation("dp", 1);
  for (int rank : {0, 1}) member(barrier, rank, 1100, 1100, 1100, StartedBy::kEvent);
  EXPECT_THAT(texts(path_until(1100)), ElementsAre("matrix products 100"));
}

TEST_F(CriticalPathTest, ListsTheLongestSegments) {
  for (int i = 0; i < 30; ++i) {
    kernel(1000 + 10 * i, 1010 + 10 * i, i % 2 == 0 ? "aten::mm" : "aten::add", StartedBy::kStream,
           0, i % 2 == 0 ? 1e6 : 0);
  }
  kernel(1300, 1400, "aten::add", StartedBy::kStream);  // with the one before: 110
  const CriticalPath path = path_until(1400);
  ASSERT_EQ(path.longest.size(), kLongestSegments);
  EXPECT_EQ(path.longest[0].end_ns - path.longest[0].start_ns, 110);
  EXPECT_EQ(path.longest[0].part, PathPart::kOtherKernels);
}

TEST(CriticalPathOfNoStep, IsNone) {
  Recorder without_steps({});
  EXPECT_FALSE(critical_path(without_steps.finish({.device = "h100"})).has_value());
  Recorder without_device({});
  without_device.step(10);
  EXPECT_FALSE(critical_path(without_device.finish({})).has_value());
  Recorder full({.max_slices = 1});
  full.slice({.start_ns = 0, .end_ns = 5});
  full.slice({.start_ns = 5, .end_ns = 9});
  full.step(10);
  EXPECT_FALSE(critical_path(full.finish({.device = "h100"})).has_value());
}

}  // namespace
}  // namespace accelerate::simulator
