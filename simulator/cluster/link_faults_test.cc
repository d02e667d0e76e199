// Links that are slow or down in a whole cluster, and messages beside collectives, by closed forms.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "simulator/cluster/cluster.h"
#include "simulator/faults/rules.h"
#include "simulator/hardware/cluster_spec.h"
#include "simulator/network/link_use.h"
#include "simulator/network/network.h"

namespace accelerate::simulator {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using Tensors = std::vector<at::Tensor>;
using ::testing::HasSubstr;

// A NIC is all that is between the two devices.
constexpr char kSpec[] = "2x1:h100,efficiency=ideal,nics=1,nic=50GB/s,nic_latency=1us";
constexpr int64_t kBytes = int64_t{64} << 20;

Tensors on_device(Rank& rank, int64_t bytes = kBytes) {
  return {at::ones({bytes / 4}, at::TensorOptions(rank.runtime().device()))};
}

ClusterOptions under(const std::string& plan) {
  ClusterOptions options{.seed = 3, .numerics = Numerics::kShapes};
  options.faults = FaultRules::parse(plan).value();
  return options;
}

void all_reduce(const Group& group, Tensors& tensors, int /*rank*/) {
  group->allreduce(tensors)->wait();
}

void send_to_rank_1(const Group& group, Tensors& tensors, int rank) {
  (rank == 0 ? group->send(tensors, 1, 0) : group->recv(tensors, 0, 0))->wait();
}

using Communicate = void (*)(const Group& group, Tensors& tensors, int rank);

// What each of so many steps takes at rank 0, of which each communicates once.
std::vector<double> steps_under(const std::string& plan, Communicate communicate, int steps = 1) {
  Cluster cluster(kSpec, under(plan));
  std::vector<double> times;
  cluster.run_on_every_rank([&](Rank& rank) {
    SimDevice& device = *rank.device();
    const Group group = rank.runtime().new_group({.name = "all"});
    Tensors tensors = on_device(rank);
    device.synchronize();
    for (int step = 0; step < steps; ++step) {
      const int64_t start_ns = device.host_ns();
      communicate(group, tensors, rank.index());
      device.synchronize();
      if (rank.index() == 0) times.push_back(static_cast<double>(device.host_ns() - start_ns));
      rank.runtime().record_step();
    }
  });
  for (const FaultOutcome& outcome : cluster.fault_outcomes()) {
    EXPECT_GT(outcome.touched, 0) << outcome.to_string();
  }
  return times;
}

TEST(LinkFaults, AQuarterOfALinkTakesFourTimesAsLongForTenSteps) {
  for (const Communicate communicate : {all_reduce, send_to_rank_1}) {
    const std::vector<double> whole = steps_under("", communicate, 30);
    const std::vector<double> slow =
        steps_under("link nic of node 0 at step 10: slow(0.25) for 10 steps", communicate, 30);
    ASSERT_EQ(slow.size(), 30U);
    for (int step = 0; step < 30; ++step) {
      const double expected = step >= 10 && step < 20 ? 4 : 1;
      EXPECT_NEAR(slow[step] / whole[step], expected, 0.03 * expected) << "step " << step;
    }
  }
}

TEST(LinkFaults, TheWayBetweenTwoNodesIsSlow) {
  for (const Communicate communicate : {all_reduce, send_to_rank_1}) {
    const double whole = steps_under("", communicate)[0];
    const double slow =
        steps_under("link between node 0 and node 1 at time 0: slow(0.5)", communicate)[0];
    EXPECT_NEAR(slow / whole, 2, 0.06);
  }
}

TEST(LinkFaults, AFlappingLinkTakesTwiceAsLong) {
  for (const Communicate communicate : {all_reduce, send_to_rank_1}) {
    const double whole = steps_under("", communicate)[0];
    const double slow = steps_under("link nic of rank 1 at time 0: flap(10us)", communicate)[0];
    EXPECT_NEAR(slow / whole, 2, 0.06);
  }
}

TEST(LinkFaults, WhatIsUnderWayWaitsForALinkThatIsDown) {
  for (const Communicate communicate : {all_reduce, send_to_rank_1}) {
    const double whole = steps_under("", communicate)[0];
    const double slow =
        steps_under("link nic of node 1 at time 500us: down for 3s", communicate)[0];
    EXPECT_NEAR(slow - whole, 3e9, 1e6);
  }
}

TEST(LinkFaults, ALinkThatStaysDownIsNamed) {
  for (const Communicate communicate : {all_reduce, send_to_rank_1}) {
    const std::string plan = "link nic of node 1 at time 0: down";
    try {
      steps_under(plan, communicate);
      FAIL() << "it ended";
    } catch (const ClusterError& error) {
      EXPECT_THAT(error.what(), HasSubstr(absl::StrCat("links are down: \"", plan, "\"")));
    }
  }
}

TEST(LinkFaults, ALinkThatLosesWhatLeavesStopsOneDirection) {
  const std::string plan = "link nic of node 1 at time 0: one_way";
  Cluster cluster(kSpec, under(plan));
  cluster.run_on_every_rank([](Rank& rank) {
    const Group group = rank.runtime().new_group({.name = "all"});
    Tensors tensors = on_device(rank);
    send_to_rank_1(group, tensors, rank.index());
  });
  EXPECT_THROW(steps_under(plan, all_reduce), ClusterError);
}

void send_to_rank_0(const Group& group, Tensors& tensors, int rank) {
  (rank == 1 ? group->send(tensors, 0, 0) : group->recv(tensors, 1, 0))->wait();
}

// As for NICs: what comes in arrives.
TEST(LinkFaults, ANodeLinkThatLosesWhatLeavesStopsOneDirection) {
  const std::string plan = "link node-link of rank 1 at time 0: one_way";
  const auto run_under = [&](Communicate communicate) {
    Cluster cluster("1x2:h100,efficiency=ideal", under(plan));
    cluster.run_on_every_rank([&](Rank& rank) {
      const Group group = rank.runtime().new_group({.name = "all"});
      Tensors tensors = on_device(rank);
      communicate(group, tensors, rank.index());
    });
  };
  EXPECT_NO_THROW(run_under(send_to_rank_1));
  EXPECT_THROW(run_under(send_to_rank_0), ClusterError);
  EXPECT_THROW(run_under(all_reduce), ClusterError);
}

TEST(LinkFaults, ALinkThatFallsIsWholeAtFirst) {
  for (const Communicate communicate : {all_reduce, send_to_rank_1}) {
    const double whole = steps_under("", communicate)[0];
    const auto slow = [&](const std::string& effect) {
      return steps_under("link nic of node 0 at time 0: " + effect, communicate)[0] / whole;
    };
    EXPECT_NEAR(slow("slow(0.5 by 60s)"), 1, 0.03);
    EXPECT_NEAR(slow("slow(0.5 by 1us)"), 2, 0.06);
  }
}

struct Ends {
  double message;
  double sum;
  double next;  // of a small sum behind the other one
};

// A message and a sum over one NIC at once; ends at rank 0.
Ends ends_of(bool has_message, bool has_sum, bool message_first, const std::string& plan = "") {
  Cluster cluster(kSpec, under(plan));
  Ends ends{};
  cluster.run_on_every_rank([&](Rank& rank) {
    SimDevice& device = *rank.device();
    const Group messages = rank.runtime().new_group({.name = "messages"});
    const Group sums = rank.runtime().new_group({.name = "sums"});
    Tensors sent = on_device(rank), summed = on_device(rank), small = on_device(rank, 4);
    device.synchronize();
    const auto start_ns = static_cast<double>(device.host_ns());
    c10::intrusive_ptr<c10d::Work> message, sum;
    const auto send = [&] {
      if (!has_message) return;
      message = rank.index() == 0 ? messages->send(sent, 1, 0) : messages->recv(sent, 0, 0);
    };
    if (message_first) send();
    rank.runtime().sleep_for(absl::Nanoseconds(10));
    if (has_sum) sum = sums->allreduce(summed);
    if (!message_first) send();
    const auto end_of = [&](const c10::intrusive_ptr<c10d::Work>& work) {
      if (!work) return 0.0;
      work->wait();
      return static_cast<double>(device.stream_ns(device.current_stream())) - start_ns;
    };
    // The stream's clock only goes forward, so that the earlier end is asked for first.
    double first = end_of(message_first ? sum : message);
    double second = end_of(message_first ? message : sum);
    if (message_first) std::swap(first, second);
    const double next = end_of(sums->allreduce(small));
    if (rank.index() == 0) ends = {.message = first, .sum = second, .next = next};
  });
  return ends;
}

TEST(LinkFaults, AMessageSlowsASumThatIsCalledBehindIt) {
  const Ends alone = ends_of(false, true, true);
  const Ends both = ends_of(true, true, true);
  EXPECT_NEAR(both.sum / alone.sum, 2, 0.06);
  EXPECT_NEAR(both.message / alone.sum, 2, 0.06);
}

// The sum's end is told before; what comes behind it waits for what the message took.
TEST(LinkFaults, ASumSlowsAMessageThatIsSentBehindIt) {
  const Ends alone = ends_of(true, false, false);
  const Ends both = ends_of(true, true, false);
  EXPECT_NEAR(both.message / alone.message, 2, 0.06);
  EXPECT_NEAR(both.next / alone.message, 2, 0.06);
}

// Half of the link is left of it, and each of the two has half of that.
TEST(LinkFaults, AMessageAndASumSlowEachOtherOnAFlappingLink) {
  const std::string plan = "link nic of rank 1 at time 0: flap(10us)";
  const double message = ends_of(true, false, false).message;
  const double sum = ends_of(false, true, true).sum;
  EXPECT_NEAR(ends_of(true, false, false, plan).message / message, 2, 0.06);
  EXPECT_NEAR(ends_of(false, true, true, plan).sum / sum, 2, 0.06);
  const Ends behind_a_message = ends_of(true, true, true, plan);
  EXPECT_NEAR(behind_a_message.sum / sum, 4, 0.12);
  EXPECT_NEAR(behind_a_message.message / message, 4, 0.12);
  const Ends behind_a_sum = ends_of(true, true, false, plan);
  EXPECT_NEAR(behind_a_sum.message / message, 4, 0.12);
  EXPECT_NEAR(behind_a_sum.next / message, 4, 0.12);
}

// The communication of each step in which rank 0 computes nothing, on nodes of four ranks whose
// gradients are summed beside a multiplication.
std::vector<double> exposed_under(const std::string& plan, int64_t bytes, int steps) {
  Cluster cluster("2x4:h100", under(plan));
  std::vector<double> exposed;
  cluster.run_on_every_rank([&](Rank& rank) {
    SimDevice& device = *rank.device();
    const Group group = rank.runtime().new_group({.name = "all"});
    Tensors gradients = on_device(rank, bytes);
    const at::Tensor factor = at::ones({2048, 2048}, at::TensorOptions(rank.runtime().device()));
    for (int step = 0; step < steps; ++step) {
      device.synchronize();
      const auto sum = group->allreduce(gradients);
      const at::Tensor product = at::mm(factor, factor);
      const auto computed_ns = static_cast<double>(device.stream_ns(device.current_stream()));
      sum->wait();
      device.synchronize();
      if (rank.index() == 0) {
        exposed.push_back(static_cast<double>(device.host_ns()) - computed_ns);
      }
      rank.runtime().record_step();
    }
  });
  return exposed;
}

// A sum that demands the part d of each NIC takes d / (1/4) times as long on a quarter of it.
TEST(LinkFaults, ExposedTimeRisesForTenStepsAsTheClosedFormSaysAndReturns) {
  constexpr int64_t kGradients = int64_t{256} << 20;
  const ClusterSpec spec = ClusterSpec::parse("2x4:h100").value();
  const Network network(spec);
  const std::vector<int> ranks = {0, 1, 2, 3, 4, 5, 6, 7};
  const CollectiveTime alone = network.collective(CollectiveKind::kAllReduce, ranks, kGradients);
  const LinkBytes use = link_use(spec, CollectiveKind::kAllReduce, alone.algorithm, ranks)[0] *
                        static_cast<double>(kGradients);
  const LinkBytes rates = link_rates(network.links());
  const auto alone_ns = static_cast<double>(alone.ns);
  const double demand = std::min(
      1.0, std::max(use.nic_out / rates.nic_out, use.nic_in / rates.nic_in) * 1e9 / alone_ns);
  EXPECT_GT(demand, 0.3);
  const std::vector<double> whole = exposed_under("", kGradients, 20);
  const std::vector<double> slow =
      exposed_under("link nic of node 0 at step 5: slow(0.25) for 10 steps", kGradients, 20);
  ASSERT_EQ(slow.size(), 20U);
  EXPECT_LT(whole.back(), alone_ns) << "the multiplication hides a part of it";
  for (int step = 0; step < 20; ++step) {
    const double rise = step >= 5 && step < 15 ? (demand / 0.25 - 1) * alone_ns : 0;
    EXPECT_NEAR(slow[step] - whole[step], rise, 0.01 * alone_ns) << "step " << step;
  }
}

}  // namespace
}  // namespace accelerate::simulator
