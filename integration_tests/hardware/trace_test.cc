// The events, sums and names of a recorded run.
// One shape each, but for what holds of any trace: the figures are those of this hardware, and
// messages name ranks.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "simulator/cluster/cluster.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::MemoryCategory;
using simulator::Rank;
using simulator::Slice;
using simulator::SliceKind;
using simulator::Trace;

void train(Rank& rank) {
  Accelerator accelerator;
  torch::manual_seed(0);
  torch::nn::Sequential net(torch::nn::Linear(256, 512), torch::nn::ReLU(),
                            torch::nn::Linear(512, 256));
  torch::optim::Adam adam(net->parameters(), 1e-3);
  auto [model, optimizer] = accelerator.prepare(net, adam);
  for (int step = 0; step < 4; ++step) {
    torch::Tensor loss = model(torch::ones({64, 256}).to(accelerator.device())).square().mean();
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
  }
}

Trace recorded(const std::string& spec, uint64_t seed = 0) {
  Cluster cluster(spec, {.seed = seed, .record = true});
  cluster.run_on_every_rank(train);
  EXPECT_LE(absl::Nanoseconds(cluster.trace().ranks[0].end_ns), cluster.elapsed());
  return cluster.trace();
}

int64_t at_peak(const Trace& trace, MemoryCategory category) {
  return trace.ranks[0].at_peak[static_cast<size_t>(category)];
}

TEST(Trace, TellsOfEveryRank) {
  const Trace trace = recorded("2x4:h100", 7);
  EXPECT_EQ(trace.topology, "2x4:h100");
  EXPECT_EQ(trace.seed, 7);
  EXPECT_EQ(trace.device, "h100");
  EXPECT_GT(trace.memory_capacity, int64_t{70} << 30);
  ASSERT_EQ(trace.ranks.size(), 8);
  for (const auto& rank : trace.ranks) {
    EXPECT_GT(rank.compute_ns, 0);
    EXPECT_GT(rank.communication_ns, 0);
    EXPECT_LE(rank.exposed_ns, rank.communication_ns);
    EXPECT_GE(rank.end_ns, rank.compute_ns);
  }
}

TEST(Trace, SaysWhatMemoryWasForAtThePeak) {
  const Trace trace = recorded("1x2:h100");
  // Weights and biases of both layers, in blocks of 512 bytes.
  const int64_t parameters = 4 * (256 * 512 + 512 + 512 * 256 + 256);
  EXPECT_EQ(at_peak(trace, MemoryCategory::kParameters), parameters);
  EXPECT_EQ(at_peak(trace, MemoryCategory::kOptimizerState), 2 * parameters);
  EXPECT_GT(at_peak(trace, MemoryCategory::kBuckets), 0);
}

TOPOLOGY_SUITE(AnyTrace, .min_ranks = 2, .hardware = simulator::Hardware::kGpu);

TEST_P(AnyTrace, JoinsACollectivesMembers) {
  const Trace trace = recorded(topology(), simulator::seed_of_run(1));
  ASSERT_FALSE(trace.operations.empty());
  std::vector<std::set<int>> members(trace.operations.size());
  for (const Slice& slice : trace.slices) {
    if (slice.kind == SliceKind::kCollective) members.at(slice.operation).insert(slice.rank);
  }
  for (size_t i = 0; i < members.size(); ++i) {
    EXPECT_EQ(std::vector<int>(members[i].begin(), members[i].end()), trace.operations[i].ranks);
  }
}

// Rank 2 comes 5 ms after the others to the second all-reduce.
TEST(Trace, ShowsWhoWaitedForTheLastRankOfACollective) {
  Cluster cluster("1x4:h100", {.record = true});
  cluster.run_on_every_rank([](Rank& rank) {
    auto group = rank.runtime().new_group({.name = "world"});
    std::vector<at::Tensor> tensors{torch::ones({1024}, rank.runtime().device())};
    group->allreduce(tensors)->wait();
    rank.device()->synchronize();
    if (rank.index() == 2) rank.runtime().sleep_for(absl::Milliseconds(5));
    group->allreduce(tensors)->wait();
  });
  const Trace& trace = cluster.trace();
  ASSERT_EQ(trace.operations.size(), 2);
  EXPECT_EQ(trace.operations[1].last_rank, 2);
  EXPECT_NE(trace.operations[1].first_rank, 2);
  EXPECT_EQ(trace.operations[1].spread_ns, 5'000'000);
  std::map<int, Slice> waits;
  std::map<int, Slice> parts;
  for (const Slice& slice : trace.slices) {
    if (slice.operation != 1) continue;
    (slice.kind == SliceKind::kWait ? waits : parts).emplace(slice.rank, slice);
  }
  ASSERT_EQ(parts.size(), 4);
  EXPECT_EQ(waits.size(), 3);
  EXPECT_FALSE(waits.contains(2));
  for (const auto& [rank, wait] : waits) {
    EXPECT_EQ(wait.end_ns - wait.start_ns, 5'000'000) << rank;
    EXPECT_EQ(wait.end_ns, parts.at(rank).start_ns) << rank;
    EXPECT_EQ(wait.stream, parts.at(rank).stream) << rank;
  }
  for (const auto& [rank, part] : parts) {
    EXPECT_EQ(part.start_ns, parts.at(2).start_ns) << rank;
    EXPECT_LT(part.end_ns - part.start_ns, 1'000'000) << rank;
  }
  EXPECT_GT(trace.ranks[0].exposed_ns, 5'000'000);
  EXPECT_LT(trace.ranks[2].exposed_ns, 1'000'000);
}

TEST_P(AnyTrace, SlicesOfAStreamDoNotOverlap) {
  const Trace trace = recorded(topology(), simulator::seed_of_run(2));
  std::map<std::pair<int, int>, int64_t> end_of;
  for (const Slice& slice : trace.slices) {
    int64_t& end_ns = end_of[{slice.rank, slice.stream}];
    EXPECT_GE(slice.start_ns, end_ns);
    EXPECT_GE(slice.end_ns, slice.start_ns);
    end_ns = slice.end_ns;
  }
}

TEST(Trace, HasTheMemoryThatTheDriverShowsUnlessIdeal) {
  const Trace trace = recorded("1x2:h100");
  for (const simulator::RankSummary& rank : trace.ranks) {
    // The context alone takes hundreds of MiB.
    EXPECT_GT(rank.driver_peak, rank.memory_peak + (int64_t{256} << 20));
    EXPECT_LT(rank.driver_peak, trace.memory_capacity);
  }
  EXPECT_EQ(recorded("1x2:h100,efficiency=ideal").ranks[0].driver_peak, 0);
}

TEST(Trace, CountsSteps) { EXPECT_GE(recorded("1x2:h100").steps.size(), 3); }

TEST_P(AnyTrace, IsTheSameForTheSameSeed) {
  const uint64_t seed = simulator::seed_of_run(3);
  const Trace first = recorded(topology(), seed);
  const Trace second = recorded(topology(), seed);
  ASSERT_EQ(first.slices.size(), second.slices.size());
  for (size_t i = 0; i < first.slices.size(); ++i) {
    ASSERT_EQ(first.slices[i].rank, second.slices[i].rank);
    ASSERT_EQ(first.slices[i].name, second.slices[i].name);
    ASSERT_EQ(first.slices[i].start_ns, second.slices[i].start_ns);
    ASSERT_EQ(first.slices[i].end_ns, second.slices[i].end_ns);
  }
}

TEST(Report, IsWrittenAfterTheRun) {
  const std::filesystem::path directory =
      std::filesystem::path(std::getenv("TEST_TMPDIR")) / "report";
  Cluster cluster("2x2:h100", {.report_directory = directory.string()});
  cluster.run_on_every_rank(train);
  for (const char* file : {"report.html", "trace.json", "summary.json"}) {
    EXPECT_GT(std::filesystem::file_size(directory / file), 100) << file;
  }
  EXPECT_EQ(cluster.trace().versions.count("libtorch"), 1u);
}

TEST(Report, IsWrittenOfARunThatFailed) {
  const std::filesystem::path directory =
      std::filesystem::path(std::getenv("TEST_TMPDIR")) / "failed";
  Cluster cluster("1x2:h100,mem=1MiB,efficiency=ideal", {.report_directory = directory.string()});
  EXPECT_THROW(cluster.run_on_every_rank(train), simulator::ClusterError);
  EXPECT_TRUE(std::filesystem::exists(directory / "report.html"));
}

// The states of all ranks of a failed run, and its message.
simulator::RunFailure failure_of(const std::function<void(Rank&)>& body) {
  Cluster cluster("1x4:h100", {.record = true});
  std::string message;
  try {
    cluster.run_on_every_rank(body);
  } catch (const simulator::ClusterError& error) {
    message = error.what();
  }
  EXPECT_NE(message, "");
  if (!cluster.trace().failure) {
    ADD_FAILURE() << "the trace has no failure";
    return {.ranks = std::vector<simulator::RankAtFailure>(4)};
  }
  EXPECT_EQ(cluster.trace().failure->message, message);
  return *cluster.trace().failure;
}

TEST(Failure, NamesWhomEachRankWaitedForAndItsLastCall) {
  const simulator::RunFailure failure = failure_of([](Rank& rank) {
    auto group = rank.runtime().new_group({.name = "world"});
    group->barrier()->wait();
    if (rank.index() == 2) throw std::runtime_error("the file is empty");
    std::vector<at::Tensor> tensors{torch::ones({4}, rank.runtime().device())};
    group->allreduce(tensors)->wait();
  });
  EXPECT_NE(failure.message.find("the file is empty"), std::string::npos) << failure.message;
  ASSERT_EQ(failure.ranks.size(), 4);
  for (const int rank : {0, 1, 3}) {
    EXPECT_EQ(failure.ranks[rank].state,
              "in all_reduce #1 (sum, Float[4]) of group \"world\", waiting for rank 2");
    EXPECT_EQ(failure.ranks[rank].last_call,
              "all_reduce #1 (sum, Float[4]) of group \"world\", waits");
  }
  EXPECT_EQ(failure.ranks[2].state, "failed: the file is empty");
  EXPECT_EQ(failure.ranks[2].last_call, "barrier #0 of group \"world\", done");
}

TEST(Failure, OfATimeOutNamesTheWaitOfTheRankThatTimedOut) {
  const simulator::RunFailure failure = failure_of([](Rank& rank) {
    auto group = rank.runtime().new_group({.name = "world"});
    if (rank.index() == 1) rank.runtime().sleep_for(absl::Hours(1));
    if (rank.index() == 3) group->barrier()->wait(std::chrono::seconds(1));
    group->barrier()->wait();
  });
  ASSERT_EQ(failure.ranks.size(), 4);
  EXPECT_EQ(failure.ranks[1].state, "sleeping");
  EXPECT_EQ(failure.ranks[1].last_call, "");
  EXPECT_NE(failure.ranks[3].state.find("waiting for rank"), std::string::npos)
      << failure.ranks[3].state;
}

TEST(Failure, IsAbsentFromTheTraceOfARunThatSucceeded) {
  EXPECT_FALSE(recorded("1x2:h100").failure.has_value());
}

TEST(Report, ThatCannotBeWrittenIsAnErrorThatNamesThePath) {
  Cluster cluster("1x1:h100", {.report_directory = "/proc/no/such"});
  try {
    cluster.run_on_every_rank([](Rank&) {});
    FAIL() << "written to /proc";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("/proc/no"), std::string::npos);
  }
}

}  // namespace
}  // namespace accelerate
