// A folded cluster takes the virtual time and the memory of the whole one, and says where it
// cannot.
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "accelerate/comm/watch/collective_call.h"
#include "accelerate/mesh/axis_set.h"
#include "accelerate/mesh/device_mesh.h"
#include "accelerate/testing/value_error.h"
#include "simulator/cluster/cluster.h"

namespace accelerate::simulator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using Tensors = std::vector<at::Tensor>;

ClusterOptions folded(int spot_checks, uint64_t seed = 3) {
  return {.seed = seed, .fold = Folding{.spot_checks = spot_checks, .with_real_numerics = true}};
}

// The message of the ClusterError; the test fails if the run succeeds.
std::string failure_of(Cluster& cluster, const std::function<void(Rank&)>& body) {
  try {
    cluster.run_on_every_rank(body);
  } catch (const ClusterError& error) {
    return error.what();
  }
  ADD_FAILURE() << "the run did not fail";
  return "";
}

Group world(Rank& rank) { return rank.runtime().new_group({.name = "world"}); }

// Some work, and one collective of each kind after it.
void work_and_talk(Rank& rank) {
  const Group group = world(rank);
  const auto size = group->getSize();
  const auto options = at::TensorOptions(rank.runtime().device());
  at::Tensor value = at::ones({64, 64}, options);
  for (int step = 0; step < 3; ++step) {
    value = value.mm(value) / 64;
    Tensors sum{value.clone()};
    auto work = group->allreduce(sum);
    at::Tensor meanwhile = value.relu();
    work->wait();
    value = sum[0] / size;
    at::Tensor all = at::empty({size * 64, 64}, options);
    group->_allgather_base(all, value)->wait();
    at::Tensor part = at::empty({64, 64}, options);
    group->_reduce_scatter_base(part, all)->wait();
    Tensors told{part};
    group->broadcast(told, {.rootRank = size - 1})->wait();
    at::Tensor exchanged = at::empty_like(all);
    std::vector<int64_t> equal_parts;
    group->alltoall_base(exchanged, all, equal_parts, equal_parts)->wait();
    value = (part / size + exchanged.narrow(0, 0, 64) + meanwhile) / 3;
  }
  group->barrier()->wait();
  if (!rank.device()->computes_shapes()) rank.report("value", value);
  rank.report("peak", static_cast<double>(rank.device()->memory().peak()));
}

TEST(Folding, TakesTheTimeAndTheMemoryOfAllRanks) {
  for (const char* spec : {"2x4:h100", "4x8:h100", "8x8:a100"}) {
    Cluster whole(spec, {.seed = 3});
    whole.run_on_every_rank(work_and_talk);
    for (int spot_checks : {0, 2}) {
      Cluster part(spec, folded(spot_checks));
      EXPECT_EQ(part.executed().num_tasks(), 1 + spot_checks);
      part.run_on_every_rank(work_and_talk);
      EXPECT_EQ(part.elapsed(), whole.elapsed()) << spec;
      const std::vector<at::Tensor> values = whole.reports("value");
      const std::vector<at::Tensor> folded_values = part.reports("value");
      ASSERT_EQ(folded_values.size(), values.size());
      for (size_t rank = 0; rank < values.size(); ++rank) {
        EXPECT_TRUE(at::equal(folded_values[rank], values[rank])) << spec << ", rank " << rank;
        EXPECT_EQ(part.reports("peak")[rank].item<double>(),
                  whole.reports("peak")[rank].item<double>());
      }
    }
  }
}

// With shapes alone the values of large tensors are not computed.
ClusterOptions shapes_alone() {
  return {.seed = 3, .numerics = Numerics::kShapes, .record = true, .largest_real_tensor = 1024};
}

// The sums of all ranks, which are those of the whole cluster's.
void expect_equal_sums(const Cluster& part, const Cluster& whole) {
  EXPECT_EQ(part.elapsed(), whole.elapsed());
  ASSERT_EQ(part.trace().ranks.size(), whole.trace().ranks.size());
  for (size_t rank = 0; rank < whole.trace().ranks.size(); ++rank) {
    const RankSummary& own = part.trace().ranks[rank];
    const RankSummary& expected = whole.trace().ranks[rank];
    EXPECT_EQ(own.end_ns, expected.end_ns) << "rank " << rank;
    EXPECT_EQ(own.compute_ns, expected.compute_ns) << "rank " << rank;
    EXPECT_EQ(own.communication_ns, expected.communication_ns) << "rank " << rank;
    EXPECT_EQ(own.exposed_ns, expected.exposed_ns) << "rank " << rank;
    EXPECT_EQ(own.memory_peak, expected.memory_peak) << "rank " << rank;
    EXPECT_EQ(own.at_peak, expected.at_peak) << "rank " << rank;
  }
  ASSERT_EQ(part.trace().collectives.size(), whole.trace().collectives.size());
  for (size_t i = 0; i < whole.trace().collectives.size(); ++i) {
    EXPECT_EQ(part.trace().collectives[i].total_ns, whole.trace().collectives[i].total_ns);
    EXPECT_EQ(part.trace().collectives[i].shared_ns, whole.trace().collectives[i].shared_ns);
  }
  ASSERT_EQ(part.trace().operators.size(), whole.trace().operators.size());
  for (size_t i = 0; i < whole.trace().operators.size(); ++i) {
    EXPECT_EQ(part.trace().operators[i].calls, whole.trace().operators[i].calls);
    EXPECT_EQ(part.trace().operators[i].total_ns, whole.trace().operators[i].total_ns);
  }
  EXPECT_EQ(part.trace().communication, whole.trace().communication);
}

TEST(Folding, TakesTheTimeAndTheMemoryOfAllRanksWithShapesAlone) {
  for (const char* spec : {"2x4:h100", "4x8:h100", "8x8:h100"}) {
    SCOPED_TRACE(spec);
    ClusterOptions options = shapes_alone();
    Cluster whole(spec, options);
    whole.run_on_every_rank(work_and_talk);
    options.fold = Folding{};
    Cluster part(spec, options);
    EXPECT_EQ(part.executed().num_tasks(), 2);
    part.run_on_every_rank(work_and_talk);
    expect_equal_sums(part, whole);
  }
}

// Rank 0 draws the first values, and writes some of the last ones.
void work_of_a_main_process(Rank& rank) {
  const Group group = world(rank);
  const auto options = at::TensorOptions(rank.runtime().device());
  for (int step = 0; step < 2; ++step) {
    Tensors value{rank.index() == 0
                      ? at::ones({256, 256}, options).mm(at::ones({256, 256}, options))
                      : at::zeros({256, 256}, options)};
    group->broadcast(value, {.rootRank = 0})->wait();
    group->allreduce(value)->wait();
  }
  if (rank.index() == 0) rank.device()->synchronize();
  group->barrier()->wait();
}

TEST(Folding, ExecutesRank0ApartWhereItDoesMore) {
  for (const char* spec : {"2x4:h100", "4x8:h100"}) {
    SCOPED_TRACE(spec);
    ClusterOptions options = shapes_alone();
    Cluster whole(spec, options);
    whole.run_on_every_rank(work_of_a_main_process);
    options.fold = Folding{.spot_checks = 2, .rank_0_apart = true};
    Cluster part(spec, options);
    EXPECT_EQ(part.executed().weight_of(0), 1);
    EXPECT_EQ(part.executed().num_tasks(), 4);
    part.run_on_every_rank(work_of_a_main_process);
    expect_equal_sums(part, whole);
    options.fold = Folding{};
    Cluster as_replicas(spec, options);
    EXPECT_THAT(failure_of(as_replicas, work_of_a_main_process),
                HasSubstr("rank 0 does, but with folding they count as one"));
  }
  // On a mesh its neighbours along each axis are apart as well.
  ClusterOptions options = shapes_alone();
  options.fold = Folding{
      .spot_checks = 0, .rank_0_apart = true, .mesh = Mesh({.dp_replicate = 4, .dp_shard = 8})};
  EXPECT_THAT(Cluster("4x8:h100", options).executed().ranks(), ElementsAre(0, 1, 8, 9));
}

// ---- Meshes.

struct MeshCase {
  const char* spec;
  MeshSizes sizes;
  std::vector<MeshAxis> along;
  int executed;  // without spot checks
  PpPlacement pp_placement = PpPlacement::kOutermost;
};

void PrintTo(const MeshCase& tested, std::ostream* out) {
  *out << Mesh(tested.sizes, tested.pp_placement).to_string() << " on " << tested.spec;
}

const MeshCase kMeshCases[] = {
    {"2x4:h100", {.dp_replicate = 2, .tp = 4}, {}, 1},
    {"2x4:h100", {.dp_replicate = 2, .tp = 4}, {MeshAxis::kDpReplicate}, 4},
    {"2x4:h100", {.pp = 2, .dp_replicate = 4}, {}, 2},
    {"2x4:h100", {.pp = 4, .tp = 2}, {}, 4},
    {"2x4:h100", {.dp_shard = 4, .tp = 2}, {}, 1},
    {"2x4:h100", {.pp = 2, .dp_replicate = 2, .tp = 2}, {}, 2},
    {"2x4:h100", {.pp = 2, .dp_replicate = 2, .tp = 2}, {}, 2, PpPlacement::kInsideDpReplicate},
    {"4x8:h100", {.dp_replicate = 2, .dp_shard = 2, .tp = 8}, {}, 1},
    {"4x8:h100", {.pp = 4, .dp_shard = 8}, {}, 4},
    {"4x8:h100", {.pp = 2, .dp_replicate = 2, .cp = 2, .sp = 2, .tp = 2}, {}, 2},
    {"8x8:h100", {.dp_shard = 8, .tp = 8}, {}, 1},
    {"8x8:h100", {.pp = 8, .dp_replicate = 8}, {MeshAxis::kDp}, 8},
    {"8x8:h100", {.pp = 2, .dp_replicate = 2, .dp_shard = 2, .cp = 2, .sp = 2, .tp = 2}, {}, 2},
    // Four columns share one NIC, and behind a host bridge a link.
    {"2x4:h100,fabric=fat-tree,nics=1", {.pp = 2, .dp_replicate = 4}, {}, 2},
    {"2x4:h100,node=pcie,fabric=fat-tree,nics=2", {.pp = 4, .tp = 2}, {}, 4},
    // Two columns share a NIC, and two have their own.
    {"2x4:h100,fabric=fat-tree,nics=3", {.pp = 2, .dp_replicate = 4}, {}, 4},
    // A tp group in each node, and one across both.
    {"2x3:h100", {.dp_replicate = 3, .tp = 2}, {}, 2},
    {"tpu-v4:2x2x2", {.pp = 2, .dp_shard = 4}, {}, 2},
};

// Collectives that share links, of other sizes on each axis: twice on all axes, without a wait.
void all_axes_at_once(Rank& rank, const DeviceMesh& groups) {
  int64_t size = int64_t{1} << 20;
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  for (int time = 0; time < 2; ++time) {
    for (const MeshAxis axis : values<MeshAxis>()) {
      if (joins_sp(axis) || !groups.group(axis)) continue;
      Tensors sum{at::ones({size}, at::TensorOptions(rank.runtime().device()))};
      works.push_back(groups.group(axis)->allreduce(sum));
      size += size / 2;
    }
  }
  for (const auto& work : works) work->wait();
}

// Work that differs by stage, and collectives and messages on every axis.
void work_on_mesh(Rank& rank, const Mesh& mesh) {
  const DeviceMesh groups(mesh, rank.runtime());
  const auto options = at::TensorOptions(rank.runtime().device());
  const int stage = groups.coordinate(MeshAxis::kPp);
  at::Tensor value = at::ones({96, 96}, options);
  for (int step = 0; step < 2; ++step) {
    for (int i = 0; i <= stage; ++i) value = value.mm(value) / 96;
    if (rank.device()->computes_shapes()) all_axes_at_once(rank, groups);
    for (const MeshAxis axis : values<MeshAxis>()) {
      if (joins_sp(axis) || axis == MeshAxis::kPp) continue;
      const Group& group = groups.group(axis);
      if (!group) continue;
      const auto size = group->getSize();
      Tensors sum{value.clone()};
      auto work = group->allreduce(sum);
      at::Tensor meanwhile = value.relu();
      work->wait();
      at::Tensor all = at::empty({size * 96, 96}, options);
      group->_allgather_base(all, sum[0])->wait();
      at::Tensor part = at::empty({96, 96}, options);
      group->_reduce_scatter_base(part, all)->wait();
      value = (part / (size * size) + meanwhile) / 2;
    }
    const Group& pipeline = groups.group(MeshAxis::kPp);
    if (!pipeline) continue;
    // A message to each neighbour at once, of other sizes in each direction, and a collective.
    const int last = pipeline->getSize() - 1;
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    Tensors down{value.clone()};
    Tensors up{value.narrow(0, 0, 32 + 8 * stage).clone()};
    Tensors from_above{at::empty_like(down[0])};
    Tensors from_below{at::empty({32 + 8 * (stage + 1), 96}, options)};
    if (stage < last) works.push_back(pipeline->send(down, stage + 1, 0));
    if (stage > 0) works.push_back(pipeline->send(up, stage - 1, 1));
    if (stage > 0) works.push_back(pipeline->recv(from_above, stage - 1, 0));
    if (stage < last) works.push_back(pipeline->recv(from_below, stage + 1, 1));
    for (const auto& work : works) work->wait();
    Tensors sum{stage > 0 ? from_above[0] : value};
    pipeline->allreduce(sum)->wait();
    value = sum[0] / (last + 1);
  }
  world(rank)->barrier()->wait();
  if (!rank.device()->computes_shapes()) rank.report("value", value);
}

class FoldedMesh : public ::testing::TestWithParam<MeshCase> {};

TEST_P(FoldedMesh, TakesTheTimeAndTheMemoryOfAllRanks) {
  const Mesh mesh(GetParam().sizes, GetParam().pp_placement);
  const auto work = [&mesh](Rank& rank) { work_on_mesh(rank, mesh); };
  for (const bool shapes : {false, true}) {
    SCOPED_TRACE(shapes ? "shapes alone" : "real numbers");
    ClusterOptions options = shapes ? shapes_alone() : ClusterOptions{.seed = 3, .record = true};
    Cluster whole(GetParam().spec, options);
    whole.run_on_every_rank(work);
    for (const int spot_checks : {0, 1}) {
      options.fold = Folding{.spot_checks = spot_checks,
                             .with_real_numerics = true,
                             .mesh = mesh,
                             .along = GetParam().along};
      Cluster part(GetParam().spec, options);
      EXPECT_TRUE(part.executed().folds() || spot_checks > 0);
      if (spot_checks == 0) EXPECT_EQ(part.executed().num_tasks(), GetParam().executed);
      part.run_on_every_rank(work);
      expect_equal_sums(part, whole);
      if (shapes) continue;
      for (size_t rank = 0; rank < whole.reports("value").size(); ++rank) {
        EXPECT_TRUE(at::equal(part.reports("value")[rank], whole.reports("value")[rank])) << rank;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, FoldedMesh, ::testing::ValuesIn(kMeshCases));

// As those that a cut model has, which are along no single axis.
TEST(FoldedMeshGroups, AlongSeveralAxesTakeTheTimeAndTheTrafficOfAllRanks) {
  const Mesh mesh({.dp_replicate = 4, .dp_shard = 2, .tp = 2});
  const auto work = [&mesh](Rank& rank) {
    const DeviceMesh groups(mesh, rank.runtime());
    at::Tensor value = at::ones({96, 96}, at::TensorOptions(rank.runtime().device()));
    for (const AxisSet axes : {AxisSet{MeshAxis::kDpShard, MeshAxis::kTp},
                               AxisSet{MeshAxis::kDpReplicate, MeshAxis::kTp}}) {
      value = value.mm(value) / 96;
      Tensors sum{value.clone()};
      groups.group(axes)->allreduce(sum)->wait();
      value = sum[0] / groups.group(axes)->getSize();
    }
    world(rank)->barrier()->wait();
  };
  for (const std::vector<MeshAxis>& along :
       {std::vector<MeshAxis>{}, std::vector{MeshAxis::kDpReplicate}}) {
    for (const int spot_checks : {0, 1}) {
      SCOPED_TRACE(std::to_string(along.size()) + " axes, " + std::to_string(spot_checks));
      ClusterOptions options = shapes_alone();
      Cluster whole("2x8:h100", options);
      whole.run_on_every_rank(work);
      options.fold = Folding{.spot_checks = spot_checks, .mesh = mesh, .along = along};
      Cluster part("2x8:h100", options);
      EXPECT_TRUE(part.executed().folds());
      part.run_on_every_rank(work);
      expect_equal_sums(part, whole);
    }
  }
}

TEST(FoldedMeshErrors, NameWhatDoesNotFit) {
  const auto error_of = [](Folding folding) {
    folding.with_real_numerics = true;
    return value_error_of([&] { Cluster cluster("1x4:h100", {.fold = folding}); });
  };
  EXPECT_THAT(error_of({.mesh = Mesh({.tp = 2})}),
              HasSubstr("a mesh of 2 ranks (tp 2) does not fit a cluster of 4 ranks"));
  EXPECT_THAT(error_of({.along = {MeshAxis::kTp}}), HasSubstr("names axes without a mesh"));
  EXPECT_THAT(error_of({.spot_checks = -1}), HasSubstr("-1 spot checks"));
}

TEST(FoldedMeshErrors, RefuseMessagesAlongAFoldedAxis) {
  const Mesh mesh({.pp = 2, .tp = 2});
  ClusterOptions options = folded(0);
  options.fold->mesh = mesh;
  Cluster cluster("1x4:h100", options);
  EXPECT_THAT(failure_of(cluster,
                         [&](Rank& rank) {
                           const DeviceMesh groups(mesh, rank.runtime());
                           Tensors tensors{at::ones({2})};
                           groups.group(MeshAxis::kTp)->send(tensors, 1, 0)->wait();
                         }),
              AllOf(HasSubstr("would exchange a message with rank"),
                    HasSubstr("differ along one axis of the mesh, which is not folded")));
}

// The spot check of one column of the pipeline executes the other one's second stage as well.
TEST(SpotCheck, ComparesRanksOfOneClassOfAMesh) {
  const Mesh mesh({.pp = 2, .tp = 2});
  ClusterOptions options = folded(1);
  options.fold->mesh = mesh;
  Cluster cluster("1x4:h100", options);
  EXPECT_EQ(cluster.executed().num_tasks(), 4);
  EXPECT_THAT(failure_of(cluster,
                         [&](Rank& rank) {
                           const auto device = at::TensorOptions(rank.runtime().device());
                           at::Tensor value = at::ones({8, 8}, device);
                           if (mesh.coordinate(rank.index(), MeshAxis::kPp) == 1) value.mul_(2);
                           if (rank.index() == 3) value.add_(1);
                           world(rank)->barrier()->wait();
                         }),
              AllOf(HasSubstr("but with folding they count as one"), HasSubstr("add_"),
                    HasSubstr("rank 2"), HasSubstr("rank 3")));
}

TEST(Folding, CountsFoldedRanksInTheTrace) {
  ClusterOptions options = folded(1);
  options.record = true;
  Cluster part("2x4:h100", options);
  part.run_on_every_rank(work_and_talk);
  Cluster whole("2x4:h100", {.seed = 3, .record = true});
  whole.run_on_every_rank(work_and_talk);
  EXPECT_EQ(num_executed(part.trace()), 2);
  ASSERT_THAT(part.trace().ranks, SizeIs(8));
  expect_equal_sums(part, whole);
}

TEST(Folding, LetsAMemberOfAPartCountForItsNeighbours) {
  Cluster cluster("2x4", folded(/*spot_checks=*/4));  // of three others on the first node
  cluster.run_on_every_rank([](Rank& rank) {
    const int first = rank.index() / 4 * 4;
    const Group node =
        rank.runtime().new_group({.ranks = {first, first + 1, first + 2, first + 3}});
    Tensors sum{at::ones({2})};
    node->allreduce(sum)->wait();
    EXPECT_EQ(sum[0][0].item<float>(), 4);
  });
}

TEST(Folding, RefusesAGroupWithAFoldedMemberWithoutItsLike) {
  ClusterOptions options = folded(0);
  options.fold->rank_0_apart = true;
  Cluster cluster("1x4", options);
  EXPECT_THAT(failure_of(cluster,
                         [](Rank& rank) {
                           if (rank.index() == 0) rank.runtime().new_group({.ranks = {0, 3}});
                         }),
              AllOf(HasSubstr("of no axis: rank 3 is folded, and no member of the group that does "
                              "the same is executed")));
}

TEST(Folding, NeedsShapes) {
  try {
    Cluster cluster("2x4", {.fold = Folding{}});
    ADD_FAILURE() << "not refused";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("fold needs numerics = shapes"));
  }
  const Cluster folded("2x4:h100", {.numerics = Numerics::kShapes, .fold = Folding{}});
  EXPECT_EQ(folded.executed().num_tasks(), 2);
}

TEST(Folding, RefusesMessagesWithFoldedRanks) {
  Cluster cluster("1x4", folded(0));
  EXPECT_THAT(failure_of(cluster,
                         [](Rank& rank) {
                           Tensors tensors{at::ones({2})};
                           world(rank)->send(tensors, 1, 0)->wait();
                         }),
              AllOf(HasSubstr("rank 0: send"), HasSubstr("exchange a message with rank 1"),
                    HasSubstr("1 of 4 ranks executed")));
}

TEST(Folding, RefusesToScatterWhatNobodyHas) {
  Cluster cluster("1x4", folded(0));
  EXPECT_THAT(failure_of(cluster,
                         [](Rank& rank) {
                           Tensors outputs{at::zeros({2})};
                           std::vector<Tensors> inputs;
                           world(rank)->scatter(outputs, inputs, {.rootRank = 2})->wait();
                         }),
              HasSubstr("group rank 2 is folded, so nobody has the tensors that it scatters"));
}

TEST(Folding, CountsInTheStoreForFoldedRanks) {
  Cluster cluster("1x8", folded(1));
  cluster.run_on_every_rank([](Rank& rank) {
    const auto store = rank.runtime().store();
    store->add("here", 1);
    const std::string own = "ready/rank" + std::to_string(rank.index());
    store->set(own, std::vector<uint8_t>{7});
    std::vector<std::string> all;
    for (int each = 0; each < 8; ++each) all.push_back("ready/rank" + std::to_string(each));
    store->wait(all);
    EXPECT_THAT(store->get("ready/rank6"), ElementsAre(7));
    EXPECT_TRUE(store->check(all));
    world(rank)->barrier()->wait();
    EXPECT_EQ(store->add("here", 0), 8);
  });
}

// The ways to write a rank in a key.
TEST(Folding, FindsTheRankInKeysOfEveryForm) {
  for (const auto& [before, behind] :
       std::vector<std::pair<std::string, std::string>>{{"at/rank", ""},
                                                        {"at/rank_", ""},
                                                        {"at/rank-", ""},
                                                        {"at/rank:", ""},
                                                        {"at/rank=", ""},
                                                        {"at/rank/", ""},
                                                        {"ranks/", "/done"},
                                                        {"of ranks: rank", " of 8"}}) {
    Cluster cluster("1x8", folded(1));
    cluster.run_on_every_rank([&](Rank& rank) {
      const auto store = rank.runtime().store();
      const auto key = [&](int of) { return before + std::to_string(of) + behind; };
      store->set(key(rank.index()), std::vector<uint8_t>{9});
      for (int each = 0; each < 8; ++each) {
        EXPECT_THAT(store->get(key(each)), ElementsAre(9)) << key(each);
      }
    });
  }
}

TEST(Folding, AppendsInTheStoreForFoldedRanks) {
  Cluster cluster("1x8", folded(1));
  cluster.run_on_every_rank([](Rank& rank) {
    const auto store = rank.runtime().store();
    const std::string own = "log/rank" + std::to_string(rank.index());
    store->append("log", {1, 2});
    store->append(own, {3});
    world(rank)->barrier()->wait();
    EXPECT_THAT(store->get("log"), SizeIs(16));
    EXPECT_THAT(store->get(own), ElementsAre(3));
  });
}

TEST(Folding, SaysThatAKeyMayBeAFoldedRanks) {
  Cluster cluster("1x4", folded(0));
  EXPECT_THAT(failure_of(cluster,
                         [](Rank& rank) {
                           rank.runtime().store()->set("at/" + std::to_string(rank.index()),
                                                       std::vector<uint8_t>{1});
                           rank.runtime().store()->wait({"at/3"});
                         }),
              AllOf(HasSubstr("in store wait for \"at/3\""),
                    HasSubstr("a key that only a folded rank sets exists if it names the rank"),
                    HasSubstr("ranks 1-3: folded, counts as rank 0")));
}

// All other ranks are compared with rank 0.
TEST(SpotCheck, FindsARankThatComputesSomethingElse) {
  Cluster cluster("1x4:h100", folded(3));
  EXPECT_THAT(failure_of(cluster,
                         [](Rank& rank) {
                           const auto options = at::TensorOptions(rank.runtime().device());
                           Tensors value{at::ones({8, 8}, options)};
                           world(rank)->allreduce(value)->wait();
                           if (rank.index() == 2) value[0].add_(1);
                           world(rank)->allreduce(value)->wait();
                         }),
              AllOf(HasSubstr("rank 2"), HasSubstr("but with folding they count as one"),
                    HasSubstr("add_"), HasSubstr("before its call 2, all_reduce")));
}

TEST(SpotCheck, FindsARankThatAllocatesSomethingElse) {
  Cluster cluster("1x2:h100", folded(1));
  EXPECT_THAT(
      failure_of(cluster,
                 [](Rank& rank) {
                   const auto options = at::TensorOptions(rank.runtime().device());
                   const at::Tensor own = at::empty({rank.index() == 1 ? 4096 : 8}, options);
                   world(rank)->barrier()->wait();
                 }),
      AllOf(HasSubstr("has allocated 1 blocks of"), HasSubstr("before its call 1, barrier")));
}

TEST(SpotCheck, FindsARankThatCallsSomethingElse) {
  Cluster cluster("1x3:h100", folded(2));
  EXPECT_THAT(
      failure_of(cluster,
                 [](Rank& rank) {
                   const Group group = world(rank);
                   Tensors value{at::ones({rank.index() == 1 ? 5 : 4})};
                   group->allreduce(value)->wait();
                 }),
      AllOf(HasSubstr("does not do what rank"), HasSubstr("Float[5]"), HasSubstr("Float[4]")));
}

TEST(SpotCheck, FindsARankThatEndsEarlier) {
  Cluster cluster("1x2", folded(1));
  EXPECT_THAT(failure_of(cluster,
                         [](Rank& rank) {
                           const Group group = world(rank);
                           if (rank.index() == 0) group->barrier()->wait();
                         }),
              HasSubstr("the end of the program"));
}

// What is gathered would have rank 0's number in the place of each folded rank's.
TEST(SpotCheck, FindsNumbersThatDifferByRank) {
  Cluster cluster("1x8", folded(2));
  EXPECT_THAT(failure_of(cluster,
                         [](Rank& rank) {
                           at::Tensor own = at::full({1}, rank.index(), at::kLong);
                           at::Tensor all = at::empty({8}, at::kLong);
                           world(rank)->_allgather_base(all, own)->wait();
                         }),
              AllOf(HasSubstr("gives other values than rank 0"),
                    HasSubstr("what is gathered would be wrong")));
}

TEST(SpotCheck, TakesMetricsAsTheyAre) {
  Cluster cluster("1x8", folded(2));
  cluster.run_on_every_rank([](Rank& rank) {
    const MetricValues metrics;
    at::Tensor own = at::full({1}, rank.index(), at::kLong);
    at::Tensor all = at::empty({8}, at::kLong);
    world(rank)->_allgather_base(all, own)->wait();
    EXPECT_EQ(all[rank.index()].item<int64_t>(), rank.index());
  });
}

using GatherCall = std::function<c10::intrusive_ptr<c10d::Work>(Rank&, const Group&, Tensors&)>;

// How each gathering verb is called with a rank's own tensors.
std::vector<std::pair<std::string, GatherCall>> gathering_calls() {
  const auto like = [](const Tensors& own) {
    Tensors results;
    for (const at::Tensor& each : own) results.push_back(at::empty_like(each));
    return results;
  };
  return {{"allgather",
           [like](Rank&, const Group& group, Tensors& own) {
             std::vector<Tensors> outputs(1);
             for (int i = 0; i < group->getSize(); ++i) outputs[0].push_back(like(own)[0]);
             return group->allgather(outputs, own);
           }},
          {"allgather_coalesced",
           [like](Rank&, const Group& group, Tensors& own) {
             std::vector<Tensors> outputs;
             for (int i = 0; i < group->getSize(); ++i) outputs.push_back(like(own));
             return group->allgather_coalesced(outputs, own);
           }},
          {"gather",
           [like](Rank& rank, const Group& group, Tensors& own) {
             std::vector<Tensors> outputs(rank.index() == 0 ? 1 : 0);
             for (Tensors& parts : outputs) {
               for (int i = 0; i < group->getSize(); ++i) parts.push_back(like(own)[0]);
             }
             return group->gather(outputs, own, {.rootRank = 0});
           }},
          {"_allgather_base", [](Rank&, const Group& group, Tensors& own) {
             at::Tensor all = own[0].repeat({group->getSize()});
             return group->_allgather_base(all, own[0]);
           }}};
}

TEST(SpotCheck, FindsNumbersThatDifferByRankAtEveryEntrance) {
  for (const auto& [name, call] : gathering_calls()) {
    Cluster cluster("1x8", folded(2));
    EXPECT_THAT(failure_of(cluster,
                           [&](Rank& rank) {
                             Tensors own{at::full({2}, rank.index(), at::kInt)};
                             call(rank, world(rank), own)->wait();
                           }),
                HasSubstr("what is gathered would be wrong"))
        << name;
  }
}

// Those of 64 KiB still decide what a program does; larger ones are data, as are fractions.
TEST(SpotCheck, LooksAtWholeNumbersOfUpTo64KiB) {
  const auto gather = [](int64_t count, at::ScalarType dtype) {
    return [=](Rank& rank) {
      at::Tensor own = at::full({count}, rank.index(), dtype);
      at::Tensor all = at::empty({8 * count}, dtype);
      world(rank)->_allgather_base(all, own)->wait();
    };
  };
  for (const auto& [count, dtype] : {std::pair(8192, at::kLong), std::pair(65536, at::kByte)}) {
    Cluster cluster("1x8", folded(2));
    EXPECT_THAT(failure_of(cluster, gather(count, dtype)),
                HasSubstr("what is gathered would be wrong"))
        << count << " of " << dtype;
  }
  for (const auto& [count, dtype] : {std::pair(8193, at::kLong), std::pair(1, at::kFloat)}) {
    Cluster cluster("1x8", folded(2));
    EXPECT_NO_THROW(cluster.run_on_every_rank(gather(count, dtype))) << count << " of " << dtype;
  }
}

TEST(Folding, ExecutesTheRankThatAFaultTouches) {
  const auto disk = std::make_shared<SimDisk>();
  ClusterOptions options = folded(0);
  options.disk = disk;
  options.file_faults = {{.rank = 5, .operation = 0, .kind = FileFaultKind::kRankDies}};
  Cluster cluster("1x8", options);
  EXPECT_THAT(cluster.executed().ranks(), ElementsAre(0, 5));
  EXPECT_EQ(cluster.executed().weight_of(0), 7);
  EXPECT_EQ(cluster.executed().weight_of(5), 1);
  EXPECT_THAT(failure_of(cluster,
                         [](Rank& rank) {
                           const Group group = world(rank);
                           static_cast<void>(rank.runtime().files().list("/sim"));
                           group->barrier()->wait();
                         }),
              AllOf(HasSubstr("rank 5 failed"), HasSubstr("also failed: rank 0")));
}

TEST(Folding, LeavesFoldedRanksWithoutDevices) {
  // An earlier run gives every rank its devices.
  Cluster("1x4:h100").run_on_every_rank([](Rank&) {});
  Cluster cluster("1x4:h100", folded(0));
  EXPECT_THAT(failure_of(cluster,
                         [](Rank&) {
                           at::empty({1}, at::TensorOptions(c10::Device(c10::kPrivateUse1, 1)));
                         }),
              HasSubstr("rank 0 uses sim:1, but that is the device of a rank that is folded"));
}

}  // namespace
}  // namespace accelerate::simulator
