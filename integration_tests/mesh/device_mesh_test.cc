// The groups of a mesh on simulated clusters, each of the shape that its mesh needs.
#include "accelerate/mesh/device_mesh.h"

#include <optional>
#include <string>
#include <vector>

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/time/time.h"
#include "accelerate/comm/operations.h"
#include "accelerate/testing/fake_runtime.h"
#include "accelerate/testing/value_error.h"
#include "simulator/cluster/cluster.h"
#include "simulator/trace/trace.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterError;
using simulator::Rank;
using simulator::Traffic;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

TEST(DeviceMesh, Of64RanksWithEveryAxisHasAGroupForEachAxis) {
  Cluster("8x8").run_on_every_rank([](Rank& rank) {
    const Mesh mesh({.pp = 2, .dp_replicate = 2, .dp_shard = 2, .cp = 2, .sp = 2, .tp = 2});
    const DeviceMesh device_mesh(mesh, rank.runtime());
    for (const MeshAxis axis : values<MeshAxis>()) {
      if (mesh.size(axis) == 1) continue;  // ep
      const std::vector<int> ranks = mesh.group(rank.index(), axis);
      int64_t sum = 0;
      for (const int member : ranks) sum += member;
      const ProcessGroupPtr& group = device_mesh.group(axis);
      ASSERT_NE(group, nullptr) << to_string(axis);
      EXPECT_EQ(group->getSize(), mesh.size(axis)) << to_string(axis);
      EXPECT_EQ(group->getRank(), device_mesh.coordinate(axis)) << to_string(axis);
      const at::Tensor own = at::full({1}, rank.index(), at::kLong);
      EXPECT_EQ(reduce_tensor(group, own, Reduction::kSum).item<int64_t>(), sum) << to_string(axis);
    }
    if (rank.index() != 4) return;
    EXPECT_EQ(device_mesh.group(MeshAxis::kTp)->getGroupName(), "tp of ranks 4,5");
    EXPECT_EQ(device_mesh.group(MeshAxis::kPp)->getGroupName(), "pp of ranks 4,36");
  });
}

TEST(DeviceMesh, HasNoGroupAlongAnAxisThatIsOffAndOneForAxesThatAreAlike) {
  Cluster("1x4").run_on_every_rank([](Rank& rank) {
    const DeviceMesh mesh(Mesh({.dp_shard = 2, .tp = 2}), rank.runtime());
    for (const MeshAxis axis :
         {MeshAxis::kPp, MeshAxis::kDpReplicate, MeshAxis::kCp, MeshAxis::kSp}) {
      EXPECT_EQ(mesh.group(axis), nullptr) << to_string(axis);
      EXPECT_EQ(mesh.coordinate(axis), 0) << to_string(axis);
    }
    EXPECT_EQ(mesh.group(MeshAxis::kDp), mesh.group(MeshAxis::kDpShard));
    EXPECT_EQ(mesh.group(MeshAxis::kDpCp), mesh.group(MeshAxis::kDpShardCp));
    EXPECT_EQ(mesh.group(MeshAxis::kDpCpSp), mesh.group(MeshAxis::kDp));
    EXPECT_NE(mesh.group(MeshAxis::kDp), mesh.group(MeshAxis::kTp));
  });
}

TEST(DeviceMesh, MakesAGroupAlongSeveralAxesOnceAndWhereNoAxisHasItsRanks) {
  Cluster("2x4").run_on_every_rank([](Rank& rank) {
    const DeviceMesh mesh(Mesh({.dp_replicate = 2, .dp_shard = 2, .tp = 2}), rank.runtime());
    EXPECT_EQ(mesh.group({MeshAxis::kPp, MeshAxis::kTp}), mesh.group(MeshAxis::kTp));
    EXPECT_EQ(mesh.group({MeshAxis::kDpReplicate, MeshAxis::kDpShard}), mesh.group(MeshAxis::kDp));
    EXPECT_EQ(mesh.group({MeshAxis::kCp, MeshAxis::kPp}), nullptr);
    const AxisSet replica = {MeshAxis::kDpShard, MeshAxis::kTp};
    const ProcessGroupPtr group = mesh.group(replica);
    EXPECT_EQ(group, mesh.group(replica));
    EXPECT_EQ(group->getSize(), 4);
    EXPECT_EQ(group->getGroupName(), rank.index() < 4 ? "dp_shard and tp of ranks 0,1,2,3"
                                                      : "dp_shard and tp of ranks 4,5,6,7");
    const at::Tensor own = at::full({1}, rank.index(), at::kLong);
    EXPECT_EQ(reduce_tensor(group, own, Reduction::kSum).item<int64_t>(),
              rank.index() < 4 ? 6 : 22);
  });
}

TEST(DeviceMesh, NamesLongGroupsByTheirEnds) {
  Cluster("1x16").run_on_every_rank([](Rank& rank) {
    const DeviceMesh mesh(Mesh({.dp_replicate = 16}), rank.runtime());
    EXPECT_EQ(mesh.group(MeshAxis::kDp)->getGroupName(), "dp_replicate of ranks 0,1,...,15");
  });
}

// Keeps what it is asked for, and gives groups that cannot communicate.
class AskedRuntime : public FakeRuntime {
 public:
  AskedRuntime(int rank, int ranks) : FakeRuntime(Topology::uniform(rank, 1, ranks)) {}

  ProcessGroupPtr new_group(const GroupOptions& options) override {
    asked.push_back(options);
    return c10::make_intrusive<c10d::ProcessGroup>(/*rank=*/0,
                                                   static_cast<int>(options.ranks.size()));
  }

  std::vector<GroupOptions> asked;
};

std::vector<std::optional<MeshAxis>> axes_of(const std::vector<GroupOptions>& groups) {
  std::vector<std::optional<MeshAxis>> axes;
  for (const GroupOptions& group : groups) axes.push_back(group.axis);
  return axes;
}

TEST(DeviceMesh, GivesEachGroupItsAxis) {
  AskedRuntime runtime(/*rank=*/0, /*ranks=*/8);
  const DeviceMesh mesh(Mesh({.dp_replicate = 2, .dp_shard = 2, .cp = 2}), runtime);
  EXPECT_THAT(axes_of(runtime.asked),
              ElementsAre(MeshAxis::kDpReplicate, MeshAxis::kDpShard, MeshAxis::kCp, MeshAxis::kDp,
                          MeshAxis::kDpShardCp, MeshAxis::kDpCp));
}

TEST(DeviceMesh, GivesAGroupOfSeveralAxesTheFirstOne) {
  AskedRuntime runtime(/*rank=*/5, /*ranks=*/8);
  const DeviceMesh mesh(Mesh({.dp_shard = 4, .tp = 2}), runtime, {.backend = "gloo"});
  mesh.part(MeshAxis::kDpShard, 2);
  EXPECT_EQ(mesh.part(MeshAxis::kDp, 4), mesh.group(MeshAxis::kDpShard));
  EXPECT_THAT(axes_of(runtime.asked),
              ElementsAre(MeshAxis::kDpShard, MeshAxis::kTp, MeshAxis::kDpShard));
  EXPECT_EQ(runtime.asked[0].name, "dp_shard of ranks 1,3,5,7");
  EXPECT_EQ(runtime.asked[1].name, "tp of ranks 4,5");
  EXPECT_EQ(runtime.asked[2].name, "dp_shard of ranks 5,7");
  EXPECT_EQ(runtime.asked[2].backend, "gloo");
}

TEST(DeviceMesh, MakesGroupsAlongSeveralAxesWithItsOptions) {
  AskedRuntime runtime(/*rank=*/5, /*ranks=*/8);
  const DeviceMesh mesh(Mesh({.dp_replicate = 2, .dp_shard = 2, .tp = 2}), runtime,
                        {.timeout = absl::Minutes(7), .backend = "gloo"});
  mesh.group({MeshAxis::kDpShard, MeshAxis::kTp});
  const GroupOptions& asked = runtime.asked.back();
  EXPECT_EQ(asked.name, "dp_shard and tp of ranks 4,5,6,7");
  EXPECT_THAT(asked.ranks, ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(asked.timeout, absl::Minutes(7));
  EXPECT_EQ(asked.backend, "gloo");
  EXPECT_EQ(asked.axis, std::nullopt);
}

TEST(DeviceMesh, CountsTrafficToTheAxisOfAGroupWhateverItsName) {
  Cluster cluster("1x2", {.record = true});
  cluster.run_on_every_rank([](Rank& rank) {
    for (const GroupOptions& options : {GroupOptions{.name = "halves", .axis = MeshAxis::kTp},
                                        GroupOptions{.name = "tp of ranks 0,1"}}) {
      std::vector<at::Tensor> sum = {at::ones({1})};
      rank.runtime().new_group(options)->allreduce(sum)->wait();
    }
  });
  const simulator::Trace& trace = cluster.trace();
  ASSERT_EQ(trace.axes.size(), 1u);
  EXPECT_EQ(trace.axes[0].name, "tp");
  EXPECT_THAT(trace.axes[0].coordinates, ElementsAre(0, 1));
  // The bytes of an all-reduce, without an axis and along tp.
  EXPECT_THAT(trace.communication, ElementsAre(Traffic{0, 1, 4, -1}, Traffic{0, 1, 4, 0},
                                               Traffic{1, 0, 4, -1}, Traffic{1, 0, 4, 0}));
}

TEST(DeviceMesh, MakesGroupsOfSomeRanksAlongAnAxisAndOneForEachDirectionOfMessages) {
  Cluster("1x4:h100").run_on_every_rank([](Rank& rank) {
    const DeviceMesh mesh(Mesh({.pp = 4}), rank.runtime());
    const int own = rank.index();
    EXPECT_EQ(mesh.among(MeshAxis::kPp, {own}), nullptr);
    EXPECT_EQ(mesh.among(MeshAxis::kPp, {0, 1, 2, 3}), mesh.group(MeshAxis::kPp));
    if (own == 0 || own == 3) {
      EXPECT_EQ(mesh.among(MeshAxis::kPp, {0, 3})->getGroupName(), "pp of ranks 0,3");
      EXPECT_EQ(mesh.among(MeshAxis::kPp, {0, 3})->getRank(), own == 0 ? 0 : 1);
    }
    if (own != 1 && own != 2) return;
    const ProcessGroupPtr up = mesh.channel(MeshAxis::kPp, 1, 2);
    const ProcessGroupPtr down = mesh.channel(MeshAxis::kPp, 2, 1);
    EXPECT_EQ(up->getGroupName(), "pp 1 to 2");
    EXPECT_EQ(down->getGroupName(), "pp 2 to 1");
    EXPECT_EQ(down->getRank(), own - 1);
    EXPECT_EQ(up, mesh.channel(MeshAxis::kPp, 1, 2));
  });
}

// Messages have times on clusters with devices alone, and are recorded with these.
TEST(DeviceMesh, CountsMessagesToTheAxisOfTheirGroup) {
  Cluster cluster("1x2:h100", {.record = true});
  cluster.run_on_every_rank([](Rank& rank) {
    const ProcessGroupPtr stages =
        rank.runtime().new_group({.name = "stages", .axis = MeshAxis::kPp});
    std::vector<at::Tensor> sent = {at::ones({1}, at::TensorOptions(rank.runtime().device()))};
    (rank.index() == 0 ? stages->send(sent, 1, 0) : stages->recv(sent, 0, 0))->wait();
  });
  const simulator::Trace& trace = cluster.trace();
  ASSERT_EQ(trace.axes.size(), 1u);
  EXPECT_EQ(trace.axes[0].name, "pp");
  EXPECT_THAT(trace.communication, ElementsAre(Traffic{0, 1, 4, 0}));
}

TEST(DeviceMesh, RanksThatGiveAGroupDifferentAxesAreRefused) {
  std::vector<std::string> errors(2);
  Cluster("1x2").run_on_every_rank([&](Rank& rank) {
    const std::optional<MeshAxis> axis =
        rank.index() == 0 ? std::optional(MeshAxis::kTp) : std::nullopt;
    errors[rank.index()] =
        value_error_of([&] { rank.runtime().new_group({.name = "halves", .axis = axis}); });
  });
  EXPECT_THAT(errors,
              UnorderedElementsAre("no error", AllOf(HasSubstr("group \"halves\" belongs to "),
                                                     HasSubstr("the axis tp on rank 0"),
                                                     HasSubstr("no axis on rank 1"))));
}

TEST(DeviceMesh, RanksThatGiveAGroupDifferentMembersAreRefused) {
  std::vector<std::string> errors(3);
  Cluster("1x3").run_on_every_rank([&](Rank& rank) {
    const std::vector<int> ranks = rank.index() == 0 ? std::vector{0, 1} : std::vector{1, 2};
    errors[rank.index()] = value_error_of(
        [&] { rank.runtime().new_group({.ranks = ranks, .name = "pair", .axis = MeshAxis::kTp}); });
  });
  // Rank 0 may make the group first, or one of the three ranks that agree.
  if (errors[0] == "no error") {
    EXPECT_THAT(errors[1], HasSubstr("group \"pair\" of the axis tp has ranks 1-2 on rank 1 and "
                                     "ranks 0-1 on rank 0"));
    EXPECT_THAT(errors[2], HasSubstr("group \"pair\" of the axis tp has ranks 1-2 on rank 2 and "
                                     "ranks 0-1 on rank 0"));
  } else {
    EXPECT_THAT(errors[0], HasSubstr("group \"pair\" of the axis tp has ranks 0-1 on rank 0 and "
                                     "ranks 1-2 on rank "));
  }
}

TEST(DeviceMesh, NamesAxisAndRankWhereAnAxisCannotBeCutIntoParts) {
  Cluster("1x4").run_on_every_rank([](Rank& rank) {
    const DeviceMesh mesh(Mesh({.dp_shard = 4}), rank.runtime());
    EXPECT_THAT(value_error_of([&] { mesh.part(MeshAxis::kDpShard, 3); }),
                HasSubstr("rank " + std::to_string(rank.index()) +
                          ": the 4 ranks along dp_shard cannot be cut into parts of 3"));
  });
}

TEST(DeviceMesh, RefusesAJobOfAnotherSize) {
  Cluster("1x2").run_on_every_rank([](Rank& rank) {
    EXPECT_THAT(value_error_of([&] { DeviceMesh(Mesh({.tp = 4}), rank.runtime()); }),
                HasSubstr("rank " + std::to_string(rank.index()) +
                          ": a mesh of 4 ranks (tp 4) does not fit a job of 2 ranks"));
  });
}

// Ranks 1 and 2 begin with cp, the others with tp: each waits for one that waits for another.
TEST(DeviceMesh, CollectivesOfTwoAxesInAnotherOrderAreBothNamed) {
  Cluster cluster("1x8");
  std::string what;
  try {
    cluster.run_on_every_rank([](Rank& rank) {
      const DeviceMesh mesh(Mesh({.dp_shard = 2, .cp = 2, .tp = 2}), rank.runtime(),
                            {.timeout = absl::Minutes(1)});
      const bool swaps = rank.index() == 1 || rank.index() == 2;
      for (const MeshAxis axis :
           {swaps ? MeshAxis::kCp : MeshAxis::kTp, swaps ? MeshAxis::kTp : MeshAxis::kCp}) {
        reduce_tensor(mesh.group(axis), at::ones({1}), Reduction::kSum);
      }
    });
  } catch (const ClusterError& error) {
    what = error.what();
  }
  EXPECT_THAT(what, AllOf(HasSubstr("tp of ranks 0,1"), HasSubstr("cp of ranks 1,3"))) << what;
}

}  // namespace
}  // namespace accelerate
