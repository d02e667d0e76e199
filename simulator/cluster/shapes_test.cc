// Collectives and messages of tensors without values: who has values afterwards, and that time is
// that of a run with values.
#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "simulator/cluster/cluster.h"
#include "simulator/device/shapes.h"

namespace accelerate::simulator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using Tensors = std::vector<at::Tensor>;

constexpr int64_t kLarge = 1 << 20;

using Program = std::function<void(Rank&, const Group&)>;

absl::Duration run(const Program& program, Numerics numerics = Numerics::kShapes) {
  Cluster cluster("2x2:h100", {.seed = 6, .numerics = numerics});
  cluster.run_on_every_rank(
      [&](Rank& rank) { program(rank, rank.runtime().new_group({.name = "world"})); });
  return cluster.elapsed();
}

at::Tensor ones(Rank& rank, int64_t count) { return at::ones({count}, rank.runtime().device()); }

// A small tensor whose values depend on a hollow one's.
at::Tensor unknown(Rank& rank, int64_t count) {
  return ones(rank, count) * ones(rank, kLarge).mean();
}

void all_reduce(const Group& group, at::Tensor tensor) {
  Tensors tensors{tensor};
  group->allreduce(tensors)->wait();
}

void broadcast(const Group& group, at::Tensor tensor, int root) {
  Tensors tensors{tensor};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  group->broadcast(tensors, options)->wait();
}

TEST(ShapesOfCollectives, AreHollowForHollowTensors) {
  run([](Rank& rank, const Group& group) {
    const at::Tensor tensor = ones(rank, kLarge);
    all_reduce(group, tensor);
    EXPECT_TRUE(is_hollow(tensor));
    const at::Tensor small = ones(rank, 8);
    all_reduce(group, small);
    EXPECT_EQ(small[0].item<float>(), 4);
  });
}

TEST(ShapesOfCollectives, OneMembersUnknownValueIsUnknownToAll) {
  run([](Rank& rank, const Group& group) {
    const at::Tensor sum = rank.index() == 2 ? unknown(rank, 8) : ones(rank, 8);
    all_reduce(group, sum);
    EXPECT_FALSE(has_values(sum));
    const at::Tensor own = rank.index() == 1 ? unknown(rank, 2) : ones(rank, 2);
    at::Tensor all = at::empty({8}, own.options());
    group->_allgather_base(all, const_cast<at::Tensor&>(own))->wait();
    EXPECT_FALSE(has_values(all));
    EXPECT_EQ(has_values(own), rank.index() != 1);
  });
}

TEST(ShapesOfCollectives, ABroadcastTellsWhatItsRootHas) {
  run([](Rank& rank, const Group& group) {
    const at::Tensor tensor = rank.index() == 0 ? ones(rank, 8) * 3 : unknown(rank, 8);
    broadcast(group, tensor, 0);
    EXPECT_EQ(tensor[7].item<float>(), 3);
    const at::Tensor other = rank.index() == 1 ? unknown(rank, 8) : ones(rank, 8);
    broadcast(group, other, 1);
    EXPECT_FALSE(has_values(other));
  });
}

TEST(ShapesOfCollectives, MessagesTellWhatTheirSenderHas) {
  run([](Rank& rank, const Group& group) {
    if (rank.index() > 1) return;
    // Known to unknown, unknown to known, part of a hollow tensor to a small one.
    for (const int message : {0, 1, 2}) {
      if (rank.index() == 0) {
        Tensors sent{message == 0   ? ones(rank, 8)
                     : message == 1 ? unknown(rank, 8)
                                    : ones(rank, kLarge).narrow(0, 8, 8)};
        group->send(sent, 1, message)->wait();
        continue;
      }
      Tensors received{message == 0 ? unknown(rank, 8) : ones(rank, 8)};
      group->recv(received, 0, message)->wait();
      EXPECT_EQ(has_values(received[0]), message == 0) << message;
    }
  });
}

TEST(ShapesOfCollectives, AReductionOfHollowAndOtherMemoryIsRefused) {
  try {
    run([](Rank& rank, const Group& group) {
      all_reduce(group, rank.index() == 3 ? ones(rank, kLarge).narrow(0, 0, 8) : ones(rank, 8));
    });
    FAIL() << "no error";
  } catch (const ClusterError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("all_reduce #0"), HasSubstr("group rank 3"),
                                    HasSubstr("group rank 0"), HasSubstr("numerics = shapes")));
  }
}

TEST(ShapesOfCollectives, AllToAllStillComparesSizes) {
  EXPECT_THROW(run([](Rank& rank, const Group& group) {
                 at::Tensor sent = ones(rank, kLarge), received = ones(rank, kLarge);
                 const int64_t more = rank.index() == 0 ? 4 : 0;
                 std::vector<int64_t> sends(4, kLarge / 4), receives(4, kLarge / 4);
                 sends[1] += more;
                 sends[2] -= more;
                 group->alltoall_base(received, sent, receives, sends)->wait();
               }),
               ClusterError);
}

TEST(ShapesOfCollectives, TakeTheTimeOfThoseWithValues) {
  const Program program = [](Rank& rank, const Group& group) {
    at::Tensor tensor = ones(rank, kLarge);
    all_reduce(group, tensor);
    broadcast(group, tensor, 2);
    at::Tensor all = at::empty({4 * kLarge}, tensor.options());
    group->_allgather_base(all, tensor)->wait();
    group->_reduce_scatter_base(tensor, all)->wait();
    at::Tensor other = at::empty_like(tensor);
    std::vector<int64_t> equal;
    group->alltoall_base(other, tensor, equal, equal)->wait();
    Tensors message{tensor};
    if (rank.index() == 0) group->send(message, 3, 0)->wait();
    if (rank.index() == 3) group->recv(message, 0, 0)->wait();
    all_reduce(group, ones(rank, 4));
    rank.device()->synchronize();
  };
  EXPECT_EQ(run(program, Numerics::kShapes), run(program, Numerics::kReal));
}

}  // namespace
}  // namespace accelerate::simulator
