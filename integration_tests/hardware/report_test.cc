// What a report tells of a training run beyond its events and sums: the critical path of a step,
// and the use of links. Shapes of its own: each test knows what its hardware and its ranks do.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/optim/fused_optimizers.h"
#include "simulator/cluster/cluster.h"
#include "simulator/trace/critical_path.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterOptions;
using simulator::CriticalPath;
using simulator::LinkKind;
using simulator::LinkSummary;
using simulator::PathPart;
using simulator::PathShare;
using simulator::Rank;
using simulator::Trace;

constexpr absl::Duration kLate = absl::Milliseconds(5);

// Data-parallel training of a perceptron in which one rank is late before each step; -1: none is.
void train(int late_rank, const AcceleratorOptions& options = {}) {
  Accelerator accelerator(options);
  torch::manual_seed(0);
  torch::nn::Sequential net(torch::nn::Linear(256, 512), torch::nn::ReLU(),
                            torch::nn::Linear(512, 256));
  torch::optim::AdamW adamw(net->parameters(), 1e-3);
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  for (int step = 0; step < 4; ++step) {
    Runtime& runtime = Runtime::current();
    if (runtime.topology().rank == late_rank) {
      runtime.synchronize_device();
      runtime.sleep_for(kLate);
    }
    torch::Tensor loss = model(torch::ones({64, 256}, accelerator.device())).square().mean();
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
  }
}

CriticalPath path_of(const Trace& trace) {
  const std::optional<CriticalPath> path = simulator::critical_path(trace);
  EXPECT_TRUE(path.has_value());
  return path.value_or(CriticalPath{});
}

int64_t sum_of(const CriticalPath& path) {
  int64_t sum_ns = 0;
  for (const PathShare& share : path.shares) sum_ns += share.total_ns;
  return sum_ns;
}

int64_t time_in(const CriticalPath& path, PathPart part) {
  int64_t sum_ns = 0;
  for (const PathShare& share : path.shares) sum_ns += share.part == part ? share.total_ns : 0;
  return sum_ns;
}

// What a path consists of, with names instead of numbers of names.
std::vector<std::string> texts(const Trace& trace, const CriticalPath& path) {
  std::vector<std::string> texts;
  for (const PathShare& share : path.shares) {
    texts.push_back(absl::StrCat(to_string(share.part), " ", trace.names[share.name], " ",
                                 trace.names[share.group], " ", share.rank, " ", share.total_ns));
  }
  return texts;
}

class PathOfAStep : public ::testing::TestWithParam<const char*> {};

TEST_P(PathOfAStep, AddsUpToItAndDoesNotDependOnTheSeed) {
  std::vector<std::string> first;
  for (const uint64_t seed : {1, 2, 3}) {
    Cluster cluster(GetParam(), {.seed = seed, .record = true});
    cluster.run_on_every_rank([](Rank&) { train(/*late_rank=*/-1); });
    const CriticalPath path = path_of(cluster.trace());
    EXPECT_EQ(sum_of(path), simulator::step_times(cluster.trace())->median_ns);
    EXPECT_EQ(time_in(path, PathPart::kStraggler), 0);
    if (first.empty()) first = texts(cluster.trace(), path);
    EXPECT_EQ(texts(cluster.trace(), path), first) << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, PathOfAStep,
                         ::testing::Values("1x1:h100,efficiency=ideal",
                                           "1x2:h100,efficiency=measured",
                                           "2x4:h100,efficiency=ideal", "2x2:ascend910b",
                                           "tpu-v4:2x2x1"));

// All others wait for the late rank at the first all-reduce of each step.
TEST(CriticalPath, NamesTheStraggler) {
  for (const int late_rank : {0, 1, 3}) {
    Cluster cluster("1x4:h100,efficiency=ideal", {.record = true});
    cluster.run_on_every_rank([late_rank](Rank&) { train(late_rank); });
    const CriticalPath path = path_of(cluster.trace());
    EXPECT_EQ(sum_of(path), path.end_ns - path.start_ns);
    EXPECT_THAT(path.ranks, ::testing::Contains(late_rank));
    const int64_t late_ns = absl::ToInt64Nanoseconds(kLate);
    // For rank 0 its own sleep is the host's, which also issues work. It sees another's as a wait.
    if (late_rank == 0) {
      EXPECT_GE(time_in(path, PathPart::kHost), late_ns);
      EXPECT_EQ(time_in(path, PathPart::kStraggler), 0);
    } else {
      EXPECT_NEAR(time_in(path, PathPart::kStraggler), late_ns, 0.02 * late_ns) << late_rank;
    }
    for (const PathShare& share : path.shares) {
      if (share.part == PathPart::kStraggler) EXPECT_EQ(share.rank, late_rank);
    }
    EXPECT_NEAR(path.longest[0].end_ns - path.longest[0].start_ns, late_ns, 0.05 * late_ns);
    EXPECT_EQ(path.longest[0].rank, late_rank);
  }
}

// A value that the host asks for in the middle of a step stops it from issuing work ahead.
TEST(CriticalPath, HasTheWaitsOfTheHost) {
  Cluster cluster("1x1:h100,efficiency=ideal", {.record = true});
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator;
    torch::nn::Linear net(1024, 1024);
    torch::optim::SGD sgd(net->parameters(), 1e-3);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int step = 0; step < 4; ++step) {
      torch::Tensor loss = model(torch::ones({4096, 1024}, accelerator.device())).square().mean();
      EXPECT_GT(loss.detach().cpu().item<float>(), 0);
      rank.runtime().sleep_for(absl::Milliseconds(1));
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
    }
  });
  const CriticalPath path = path_of(cluster.trace());
  EXPECT_EQ(sum_of(path), path.end_ns - path.start_ns);
  EXPECT_GE(time_in(path, PathPart::kHost), 1'000'000);
  EXPECT_GT(time_in(path, PathPart::kCopies), 0);
  EXPECT_GT(time_in(path, PathPart::kProducts), 0);
}

// Traces of the training with all ranks, and with one of those that do the same.
void train_whole_and_folded(Trace& whole, Trace& folded) {
  ClusterOptions options{.seed = 2, .numerics = simulator::Numerics::kShapes, .record = true};
  options.unknown_value = [](const std::string&) { return std::nan(""); };
  const char* spec = "4x8:h100,efficiency=measured";
  Cluster all(spec, options);
  all.run_on_every_rank([](Rank&) { train(-1); });
  options.fold = simulator::Folding{.spot_checks = 1};
  Cluster part(spec, options);
  part.run_on_every_rank([](Rank&) { train(-1); });
  ASSERT_LT(part.executed().num_tasks(), all.world_size());
  whole = all.trace();
  folded = part.trace();
}

TEST(CriticalPath, IsTheSameWithFoldedRanks) {
  Trace whole, folded;
  ASSERT_NO_FATAL_FAILURE(train_whole_and_folded(whole, folded));
  EXPECT_EQ(texts(folded, path_of(folded)), texts(whole, path_of(whole)));
  EXPECT_GT(time_in(path_of(folded), PathPart::kCommunication), 0);
}

const LinkSummary& links_of(const Trace& trace, LinkKind kind) {
  static const LinkSummary none;
  const auto found = std::ranges::find(trace.links, kind, &LinkSummary::kind);
  EXPECT_NE(found, trace.links.end()) << to_string(kind);
  return found == trace.links.end() ? none : *found;
}

// An all-reduce of N bytes by a ring sends 2 (n-1)/n N over each link; a message all of its bytes.
TEST(LinkUse, IsThatOfTheAlgorithmsAndRoutes) {
  constexpr int64_t kElements = 1 << 20;
  constexpr double kBytes = 4.0 * kElements;
  Cluster cluster("2x2:h100,efficiency=ideal", {.record = true});
  cluster.run_on_every_rank([](Rank& rank) {
    auto world = rank.runtime().new_group({.name = "world"});
    const torch::Device device = rank.runtime().device();
    std::vector<at::Tensor> tensors{torch::ones({kElements}, device)};
    world->allreduce(tensors)->wait();
    if (rank.index() == 1) world->send(tensors, 3, /*tag=*/0)->wait();
    if (rank.index() == 3) world->recv(tensors, 1, /*tag=*/0)->wait();
    if (rank.index() == 2) tensors[0].to(torch::kCPU);
  });
  const Trace& trace = cluster.trace();
  ASSERT_EQ(trace.collectives.size(), 1);
  const std::string algorithm = trace.names[trace.collectives[0].algorithm];
  // One of a ring's two hops stays in the node; the hierarchical algorithm has two phases.
  const double in_node = algorithm == "ring" ? 1.5 / 2 : 1;
  const double between = algorithm == "ring" ? 1.5 / 2 : 0.5;
  EXPECT_THAT(algorithm, ::testing::AnyOf("ring", "hierarchical"));
  EXPECT_NEAR(links_of(trace, LinkKind::kNodeOut).bytes, 4 * in_node * kBytes, 1);
  EXPECT_NEAR(links_of(trace, LinkKind::kNodeIn).bytes, 4 * in_node * kBytes, 1);
  EXPECT_NEAR(links_of(trace, LinkKind::kNicOut).bytes, (4 * between + 1) * kBytes, 1);
  EXPECT_NEAR(links_of(trace, LinkKind::kNicOut).most_bytes, (between + 1) * kBytes, 1);
  EXPECT_EQ(links_of(trace, LinkKind::kNicOut).worst, "NIC 1 of node 0");
  EXPECT_EQ(links_of(trace, LinkKind::kNicIn).worst, "NIC 1 of node 1");
  EXPECT_NEAR(links_of(trace, LinkKind::kToHost).bytes, kBytes, 1);
  EXPECT_EQ(links_of(trace, LinkKind::kToHost).worst, "rank 2");
  EXPECT_EQ(links_of(trace, LinkKind::kNodeOut).links, 4);
  for (const LinkSummary& links : trace.links) {
    EXPECT_GT(links.worst_busy_ns, 0);
    EXPECT_LE(links.worst_busy_ns, simulator::elapsed_ns(trace));
    // Nothing is faster than its link.
    EXPECT_LE(links.most_bytes, links.bytes_per_second * links.worst_busy_ns * 1e-9 * 1.001)
        << to_string(links.kind);
  }
}

// A step reduces all gradients once.
TEST(LinkUse, OfAStepIsWhatItsCollectivesSend) {
  Cluster cluster("1x4:h100,efficiency=ideal", {.record = true});
  cluster.run_on_every_rank([](Rank&) { train(/*late_rank=*/-1); });
  constexpr double kGradients = 4.0 * (256 * 512 + 512 + 512 * 256 + 256);
  const LinkSummary& links = links_of(cluster.trace(), LinkKind::kNodeOut);
  EXPECT_NEAR(links.step_bytes, 1.5 * kGradients, 0.001 * kGradients);
  const double step_ns = simulator::step_times(cluster.trace())->mean_ns;
  EXPECT_NEAR(links.step_use, links.step_bytes / (links.bytes_per_second * step_ns * 1e-9), 1e-9);
  EXPECT_EQ(simulator::busiest_links(cluster.trace())->kind, LinkKind::kNodeOut);
}

TEST(LinkUse, IsTheSameWithFoldedRanks) {
  Trace whole, folded;
  ASSERT_NO_FATAL_FAILURE(train_whole_and_folded(whole, folded));
  ASSERT_EQ(folded.links.size(), whole.links.size());
  for (const LinkSummary& of_whole : whole.links) {
    const LinkSummary& of_part = links_of(folded, of_whole.kind);
    EXPECT_NEAR(of_part.bytes, of_whole.bytes, 1e-9 * of_whole.bytes);
    EXPECT_NEAR(of_part.worst_step_use, of_whole.worst_step_use, 1e-9);
    EXPECT_EQ(of_part.worst_busy_ns, of_whole.worst_busy_ns);
  }
}

// By category, the bytes of one module at the peak.
std::map<std::string, int64_t> at_peak(const Trace& trace, const std::string& module) {
  std::map<std::string, int64_t> bytes;
  for (const simulator::ModuleMemory& each : trace.peak_modules) {
    if (each.module != module) continue;
    for (size_t i = 0; i < simulator::kNumMemoryCategories; ++i) {
      if (each.bytes[i] != 0) {
        bytes[to_string(static_cast<simulator::MemoryCategory>(i))] = each.bytes[i];
      }
    }
  }
  return bytes;
}

// What modules hold is what categories hold.
void expect_whole_peak(const Trace& trace) {
  std::array<int64_t, simulator::kNumMemoryCategories> sums = {};
  for (const simulator::ModuleMemory& each : trace.peak_modules) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += each.bytes[i];
  }
  EXPECT_EQ(sums, trace.ranks[trace.peak_rank].at_peak);
}

constexpr int64_t kFirstLayer = 4 * (256 * 512 + 512);
constexpr int64_t kLastLayer = 4 * (512 * 256 + 256);

TEST(ModulesAtThePeak, HoldParametersStateAndActivations) {
  Cluster cluster("1x2:h100,efficiency=ideal", {.record = true});
  cluster.run_on_every_rank([](Rank&) { train(/*late_rank=*/-1); });
  const Trace& trace = cluster.trace();
  expect_whole_peak(trace);
  std::map<std::string, int64_t> first = at_peak(trace, "0");
  std::map<std::string, int64_t> last = at_peak(trace, "2");
  EXPECT_EQ(first["parameters"], kFirstLayer);
  EXPECT_EQ(last["parameters"], kLastLayer);
  EXPECT_EQ(first["optimizer state"], 2 * kFirstLayer);
  EXPECT_EQ(last["optimizer state"], 2 * kLastLayer);
  // The buckets are both layers'.
  EXPECT_GT(at_peak(trace, "")["buckets"], 0);
}

TEST(ModulesAtThePeak, HoldTheStateOfOptimizersThatWorkOnLists) {
  Cluster cluster("1x2:h100,efficiency=ideal", {.record = true});
  cluster.run_on_every_rank([](Rank&) {
    Accelerator accelerator;
    torch::nn::Sequential net(torch::nn::Linear(256, 512), torch::nn::ReLU(),
                              torch::nn::Linear(512, 256));
    optim::AdamW adamw(net->parameters());
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    for (int step = 0; step < 3; ++step) {
      accelerator.backward(model(torch::ones({64, 256}, accelerator.device())).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    }
  });
  expect_whole_peak(cluster.trace());
  // Beside the moments are counters of steps.
  EXPECT_NEAR(at_peak(cluster.trace(), "0")["optimizer state"], 2 * kFirstLayer, 1024);
  EXPECT_NEAR(at_peak(cluster.trace(), "2")["optimizer state"], 2 * kLastLayer, 1024);
}

// Each rank has half of each parameter, its gradient and its moments.
TEST(ModulesAtThePeak, HoldShards) {
  Cluster cluster("1x2:h100,efficiency=ideal", {.record = true});
  cluster.run_on_every_rank(
      [](Rank&) { train(-1, {.fsdp_plugin = FullyShardedDataParallelPlugin()}); });
  expect_whole_peak(cluster.trace());
  std::map<std::string, int64_t> first = at_peak(cluster.trace(), "0");
  EXPECT_EQ(first["parameters"], kFirstLayer / 2);
  EXPECT_EQ(first["optimizer state"], kFirstLayer);
}

// What ReLU makes is for the layer before it, and the input for none.
TEST(ModulesAtThePeak, HoldActivations) {
  Cluster cluster("1x1:h100,efficiency=ideal", {.record = true});
  cluster.run_on_every_rank([](Rank&) {
    Accelerator accelerator;
    torch::nn::Sequential net(torch::nn::Linear(256, 512), torch::nn::ReLU(),
                              torch::nn::Linear(512, 256));
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const torch::Tensor loss = model(torch::ones({4096, 256}, accelerator.device())).sum();
    accelerator.backward(loss);
  });
  expect_whole_peak(cluster.trace());
  const int64_t rows = 4 * 4096;
  // What ReLU keeps of the first product, on which it has no parameter of its own.
  EXPECT_GE(at_peak(cluster.trace(), "0")["activations"], 512 * rows);
  EXPECT_EQ(at_peak(cluster.trace(), "")["activations"], 256 * rows);
}

}  // namespace
}  // namespace accelerate
