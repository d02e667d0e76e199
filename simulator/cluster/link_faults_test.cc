// Links that are slow or down in a whole cluster, and messages beside collectives, by closed forms.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "simulator/cluster/cluster.h"
#include "simulator/faults/rules.h"

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
      rank.runtime().note_step();
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

struct Ends {
  double message;
  double sum;
  double next;  // of a small sum behind the other one
};

// A message and a sum over one NIC at once; ends at rank 0.
Ends ends_of(bool has_message, bool has_sum, bool message_first) {
  Cluster cluster(kSpec, {.seed = 3, .numerics = Numerics::kShapes});
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

}  // namespace
}  // namespace accelerate::simulator
