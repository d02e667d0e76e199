// Better hardware never makes a program slower, and a worse link or disk never makes it faster, on
// clusters that were not chosen. Shapes of their own: they are drawn.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/accelerate.h"
#include "simulator/cluster/cluster.h"
#include "simulator/core/random.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterSpec;
using simulator::DeterministicRandom;
using simulator::Rank;
using simulator::SimDisk;
using torch::Tensor;

constexpr int kClusters = 20;
constexpr int kMaxRanks = 8;

// ---- The program.

constexpr int64_t kWidth = 32;

struct BlockImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    const std::vector<Tensor> parts = qkv(norm(x)).chunk(3, /*dim=*/-1);
    const Tensor weights = torch::softmax(parts[0].matmul(parts[1].transpose(-1, -2)), -1);
    const Tensor attended = x + out(weights.matmul(parts[2]));
    return attended + down(torch::relu(up(attended)));
  }

  torch::nn::LayerNorm norm{
      register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))};
  torch::nn::Linear qkv{register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(kWidth, kWidth))};
  torch::nn::Linear up{register_module("up", torch::nn::Linear(kWidth, 4 * kWidth))};
  torch::nn::Linear down{register_module("down", torch::nn::Linear(4 * kWidth, kWidth))};
};
TORCH_MODULE(Block);

// A reduction, a gathering and an exchange beside those of training.
void communicate(Rank& rank, int ranks) {
  const auto group = rank.runtime().new_group({.name = "others"});
  const at::TensorOptions options(rank.runtime().device());
  std::vector<Tensor> whole{torch::ones({ranks, 5000}, options)};
  group->broadcast(whole)->wait();
  Tensor part = torch::ones({5000}, options);
  group->_allgather_base(whole[0], part)->wait();
  group->_reduce_scatter_base(part, whole[0])->wait();
  Tensor exchanged = torch::empty_like(whole[0]);
  std::vector<int64_t> equal;
  group->alltoall_base(exchanged, whole[0], equal, equal)->wait();
}

// Two steps of training, other collectives, and a file of each rank.
void program(Rank& rank, int ranks) {
  Accelerator accelerator(
      {.kwargs_handlers = {DistributedDataParallelKwargs{.bucket_cap_mb = 0.02}}});
  torch::manual_seed(0);
  torch::nn::Sequential net(Block{}, Block{}, torch::nn::Linear(kWidth, 1));
  torch::optim::SGD sgd(net->parameters(), 0.01);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int step = 0; step < 2; ++step) {
    const Tensor input = torch::ones({4, 16, kWidth}).to(accelerator.device());
    accelerator.backward(model(input).square().mean());
    optimizer.step();
    optimizer.zero_grad();
  }
  communicate(rank, ranks);
  const std::string path = "/sim/" + std::to_string(rank.index());
  EXPECT_TRUE(write_file(rank.runtime().files(), path, std::string(100'000, 'x')).ok());
}

int64_t elapsed_ns(const ClusterSpec& spec) {
  Cluster cluster(spec.to_string(), {.disk = std::make_shared<SimDisk>()});
  cluster.run_on_every_rank([&spec](Rank& rank) { program(rank, spec.world_size()); });
  return absl::ToInt64Nanoseconds(cluster.elapsed());
}

// ---- The clusters.

template <size_t size>
std::string one_of(DeterministicRandom& random, const char* const (&values)[size]) {
  return values[random.below(size)];
}

// Down to a thousandth, so that here one constant decides and there another.
void slow_down(DeterministicRandom& random, double& rate) {
  rate = std::ldexp(rate, -static_cast<int>(random.below(11)));
}

ClusterSpec drawn(uint64_t seed) {
  DeterministicRandom random(seed);
  int nodes = 1;
  int ranks = 1;
  while (nodes * ranks < 2) {
    nodes = 1 + static_cast<int>(random.below(4));
    ranks = 1 + static_cast<int>(random.below(kMaxRanks / nodes));
  }
  const std::string device =
      one_of(random, {"h100", "a100", "v100", "mi300x", "ascend910b", "gaudi2", "max1550", "tpu-v4",
                      "tpu-v5e", "mlu", "cpu"});
  std::string text = std::to_string(nodes) + "x" + std::to_string(ranks) + ":" + device;
  if (!device.starts_with("tpu")) {
    text += ",node=" + one_of(random, {"switch", "mesh", "pcie"});
    text += ",fabric=" + one_of(random, {"rails", "fat-tree", "ethernet"});
  }
  ClusterSpec spec = ClusterSpec::parse(text).value();
  const int flops_exponent = -static_cast<int>(random.below(16));
  for (double& rate : spec.device->flops_per_second) rate = std::ldexp(rate, flops_exponent);
  slow_down(random, spec.device->memory_bytes_per_second);
  slow_down(random, spec.device->host_bytes_per_second);
  slow_down(random, spec.node_link.bytes_per_second);
  slow_down(random, spec.nic.bytes_per_second);
  slow_down(random, spec.disk.bytes_per_second);
  return spec;
}

struct DrawnCluster {
  ClusterSpec spec;
  int64_t ns = 0;
};

const std::vector<DrawnCluster>& clusters() {
  static const auto* const all = [] {
    auto* made = new std::vector<DrawnCluster>();
    for (uint64_t seed = 0; seed < kClusters; ++seed) {
      const ClusterSpec spec = drawn(seed);
      made->push_back({spec, elapsed_ns(spec)});
    }
    return made;
  }();
  return *all;
}

// ---- The changes.

struct Change {
  const char* name;
  void (*apply)(ClusterSpec&);
};

// Calls `check` with the time before and after a change of each cluster that it concerns. Returns
// how many times it was another time.
template <typename Check>
int after(const Change& change, const Check& check) {
  int different = 0;
  for (const DrawnCluster& cluster : clusters()) {
    ClusterSpec spec = cluster.spec;
    change.apply(spec);
    if (spec == cluster.spec) continue;
    SCOPED_TRACE(std::string(change.name) + ": " + cluster.spec.to_string());
    const int64_t ns = elapsed_ns(spec);
    check(cluster.ns, ns);
    if (ns != cluster.ns) ++different;
  }
  return different;
}

bool has_nics(const ClusterSpec& spec) { return spec.num_nodes > 1 && spec.torus.empty(); }

TEST(FasterHardware, IsNeverSlower) {
  for (const Change& change : {
           Change{"twice the peak",
                  [](ClusterSpec& spec) {
                    for (double& rate : spec.device->flops_per_second) rate *= 2;
                  }},
           Change{"twice the memory bandwidth",
                  [](ClusterSpec& spec) { spec.device->memory_bytes_per_second *= 2; }},
       }) {
    const int faster = after(change, [](int64_t before, int64_t now) { EXPECT_LE(now, before); });
    EXPECT_GT(faster, kClusters / 4) << change.name;
  }
}

TEST(FasterHardware, MoreMemoryTakesTheSameTime) {
  after({"twice the memory", [](ClusterSpec& spec) { spec.device->memory_bytes *= 2; }},
        [](int64_t before, int64_t now) { EXPECT_EQ(now, before); });
}

TEST(FasterHardware, AWorseLinkOrDiskIsNeverFaster) {
  for (const Change& change : {
           Change{"half of a node's link",
                  [](ClusterSpec& spec) { spec.node_link.bytes_per_second /= 2; }},
           Change{"twice the latency of a node's link",
                  [](ClusterSpec& spec) { spec.node_link.latency_ns *= 2; }},
           Change{"half of a NIC",
                  [](ClusterSpec& spec) {
                    if (has_nics(spec)) spec.nic.bytes_per_second /= 2;
                  }},
           Change{"twice the latency of a NIC",
                  [](ClusterSpec& spec) {
                    if (has_nics(spec)) spec.nic.latency_ns *= 2;
                  }},
           Change{"half of the link to the host",
                  [](ClusterSpec& spec) { spec.device->host_bytes_per_second /= 2; }},
           Change{"half of the disk", [](ClusterSpec& spec) { spec.disk.bytes_per_second /= 2; }},
           Change{"twice the latency of the disk",
                  [](ClusterSpec& spec) { spec.disk.latency_ns *= 2; }},
       }) {
    const int slower = after(change, [](int64_t before, int64_t now) { EXPECT_GE(now, before); });
    EXPECT_GT(slower, kClusters / 8) << change.name;
  }
}

}  // namespace
}  // namespace accelerate
