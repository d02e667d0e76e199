// Virtual time on simulated hardware: what a program spends, and that it depends on nothing but the
// program, the cluster and the seed.
// One shape each, but for training under every seed: the times are worked out for this hardware.
#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/accelerate.h"
#include "simulator/cluster/cluster.h"
#include "simulator/hardware/kernel_table.h"
#include "simulator/hardware/kernel_tables.h"
#include "simulator/hardware/kernel_time.h"
#include "simulator/network/network.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterSpec;
using simulator::CollectiveKind;
using simulator::Network;
using simulator::Rank;
using simulator::SimDevice;
using Tensors = std::vector<at::Tensor>;

constexpr int64_t kMebibyte = 1024 * 1024;
// Kernels at the peaks, so that their times follow from the data sheet.
constexpr char kIdeal[] = "1x1:h100,efficiency=ideal";

int64_t elapsed_ns(const std::string& spec, const std::function<void(Rank&)>& body,
                   uint64_t seed = 0) {
  Cluster cluster(spec, {.seed = seed});
  cluster.run_on_every_rank(body);
  return absl::ToInt64Nanoseconds(cluster.elapsed());
}

// The time that `part` adds to the clocks of a device that was idle before.
int64_t spent_ns(SimDevice& device, const std::function<void()>& part) {
  device.synchronize();
  const int64_t start_ns = device.host_ns();
  part();
  device.synchronize();
  return device.host_ns() - start_ns;
}

void one_device(const std::string& spec, const std::function<void(Rank&)>& body) {
  Cluster cluster(spec);
  cluster.run_on_every_rank(body);
}

TEST(Kernels, AMatrixProductTakesItsArithmetic) {
  one_device(kIdeal, [](Rank& rank) {
    SimDevice& device = *rank.device();
    const at::Tensor a = torch::ones({2048, 1024}, rank.runtime().device());
    const at::Tensor b = torch::ones({1024, 512}, rank.runtime().device());
    const double flop = 2.0 * 2048 * 1024 * 512;
    const double seconds = flop / device.model().flops(simulator::MathType::kFp32);
    EXPECT_NEAR(spent_ns(device, [&] { a.mm(b); }), device.model().launch_ns + seconds * 1e9, 1);
  });
}

TEST(Kernels, AnAdditionTakesTheBytesItMoves) {
  one_device(kIdeal, [](Rank& rank) {
    SimDevice& device = *rank.device();
    const at::Tensor a = torch::ones({64 * kMebibyte / 4}, rank.runtime().device());
    const double seconds = 2.0 * 64 * kMebibyte / device.model().memory_bytes_per_second;
    EXPECT_NEAR(spent_ns(device, [&] { a.relu(); }), device.model().launch_ns + seconds * 1e9, 1);
  });
}

TEST(Kernels, LowerPrecisionIsFasterWhereTheDeviceIs) {
  one_device("1x1:h100", [](Rank& rank) {
    const at::Tensor a = torch::ones({1024, 1024}, rank.runtime().device());
    const at::Tensor half = a.to(torch::kBFloat16);
    const int64_t in_float = spent_ns(*rank.device(), [&] { a.mm(a); });
    const int64_t in_half = spent_ns(*rank.device(), [&] { half.mm(half); });
    EXPECT_LT(in_half, in_float);
  });
}

TEST(Kernels, NormsReadTwiceForTheGradientsOfTheirWeightsUnlessIdeal) {
  for (const char* spec : {kIdeal, "1x1:h100"}) {
    one_device(spec, [&](Rank& rank) {
      const at::Tensor x = torch::ones({16384, 1024}, rank.runtime().device());
      const at::Tensor one = torch::ones({16384, 1}, rank.runtime().device());
      const at::Tensor weight = torch::ones({1024}, rank.runtime().device());
      const at::Tensor y = torch::ones_like(x);
      const auto sum = [&] { x + y; };  // passes memory three times
      const auto norm = [&] {
        at::native_layer_norm_backward(y, x, {1024}, one, one, weight, weight, {true, true, true});
      };
      // The first calls also get memory from the driver.
      sum();
      norm();
      const int64_t sum_ns = spent_ns(*rank.device(), sum);
      const int64_t norm_ns = spent_ns(*rank.device(), norm);
      const bool perfect = !rank.device()->is_measured();
      // Norms reach less of the bandwidth; a kernel that writes a smaller part of what it moves
      // reaches more.
      EXPECT_NEAR(static_cast<double>(norm_ns) / sum_ns, perfect ? 1 : 1.6 / 0.72, 0.08) << spec;
    });
  }
}

// The host's time, with nothing to wait for.
int64_t host_spent_ns(SimDevice& device, const std::function<void()>& part) {
  const int64_t start_ns = device.host_ns();
  part();
  return device.host_ns() - start_ns;
}

TEST(Host, SpendsTimeByTheOperator) {
  one_device("1x1:h100", [](Rank& rank) {
    SimDevice& device = *rank.device();
    const at::Tensor x = torch::ones({64, 64}, rank.runtime().device());
    const auto weight = torch::ones({64, 64}, x.options().requires_grad(true));
    const auto ns = [&](const std::function<void()>& part) { return host_spent_ns(device, part); };
    {  // The first calls also get memory from the driver.
      x.mm(x);
      x.mm(weight).sum().backward();
    }
    const torch::NoGradGuard no_grad;
    EXPECT_EQ(ns([&] { x.relu(); }), 3500);
    EXPECT_EQ(ns([&] { x.view({4096}); }), 700);
    EXPECT_EQ(ns([&] { x.transpose(0, 1); }), 700);
    EXPECT_EQ(ns([&] { x.mm(x); }), 6000);
    at::Tensor y = x.clone();
    EXPECT_EQ(ns([&] { at::_foreach_add_({x, y}, 1); }), 3560);
    torch::AutoGradMode records(true);
    at::Tensor product;
    EXPECT_EQ(ns([&] { product = x.mm(weight); }), 7800);
    at::Tensor sum;
    EXPECT_EQ(ns([&] { sum = product.sum(); }), 5300);
    // Ones for the sum's gradient, its expansion, a view of x and the weight's gradient.
    EXPECT_GE(ns([&] { sum.backward(); }), 4500 + 7000);
  });
}

// Times the memory of tensors of 64 MiB is passed, however many devices there are.
TEST(Kernels, InPlaceOperatorsPassMemoryAsOftenInSmallAndLargeClusters) {
  struct InPlace {
    const char* name;
    void (*run)(at::Tensor& a, const at::Tensor& b);
    int passes;
  };
  const InPlace operators[] = {
      {"relu_", [](at::Tensor& a, const at::Tensor& b) { a.relu_(); }, 2},
      {"add_", [](at::Tensor& a, const at::Tensor& b) { a.add_(b); }, 3},
      {"neg_out", [](at::Tensor& a, const at::Tensor& b) { at::neg_out(a, b); }, 2},
      {"fill_", [](at::Tensor& a, const at::Tensor& b) { a.fill_(2.0); }, 1},
      {"zero_", [](at::Tensor& a, const at::Tensor& b) { a.zero_(); }, 1},
  };
  for (const char* spec : {kIdeal, "16x8:h100,efficiency=ideal"}) {
    one_device(spec, [&](Rank& rank) {
      if (rank.index() != 0) return;
      const SimDevice& device = *rank.device();
      at::Tensor a = torch::ones({64 * kMebibyte / 4}, rank.runtime().device());
      const at::Tensor b = torch::ones_like(a);
      for (const InPlace& each : operators) {
        const double seconds =
            each.passes * 64.0 * kMebibyte / device.model().memory_bytes_per_second;
        EXPECT_NEAR(spent_ns(*rank.device(), [&] { each.run(a, b); }),
                    device.model().launch_ns + seconds * 1e9, 1)
            << each.name << " on " << spec;
      }
    });
  }
}

TEST(Kernels, ViewsAreFree) {
  one_device(kIdeal, [](Rank& rank) {
    const at::Tensor a = torch::ones({64, 64}, rank.runtime().device());
    EXPECT_EQ(spent_ns(*rank.device(), [&] { a.t().slice(0, 1, 9).view_as(a.t().slice(0, 1, 9)); }),
              0);
  });
}

TEST(Streams, RunBesideEachOtherAndEventsOrderThem) {
  one_device(kIdeal, [](Rank& rank) {
    SimDevice& device = *rank.device();
    const at::Tensor a = torch::ones({1024, 1024}, rank.runtime().device());
    const c10::impl::VirtualGuardImpl guard(c10::kPrivateUse1);
    const c10::Stream side = guard.getNewStream(a.device());
    auto product = [&] { a.mm(a); };
    const int64_t one_ns = spent_ns(device, product);
    auto on_side = [&] {
      const c10::StreamGuard scope(side);
      product();
    };
    const int64_t both_ns = spent_ns(device, [&] {
      product();
      on_side();
    });
    EXPECT_EQ(both_ns, one_ns + device.model().launch_ns);
    const int64_t in_order_ns = spent_ns(device, [&] {
      product();
      c10::Event event(c10::kPrivateUse1);
      event.record(guard.getStream(a.device()));
      event.block(side);
      on_side();
    });
    EXPECT_EQ(in_order_ns, 2 * one_ns - device.model().launch_ns);
  });
}

TEST(Copies, FromPinnedMemoryTheHostGoesOn) {
  one_device(kIdeal, [](Rank& rank) {
    SimDevice& device = *rank.device();
    const at::Tensor pinned = torch::ones({kMebibyte}).pin_memory();
    device.synchronize();
    const int64_t start_ns = device.host_ns();
    const at::Tensor there = pinned.to(rank.runtime().device(), torch::kFloat, true);
    EXPECT_EQ(device.host_ns() - start_ns, device.model().launch_ns);
    const at::Tensor again = torch::ones({kMebibyte}).to(rank.runtime().device());
    EXPECT_GT(device.host_ns() - start_ns, 3 * device.model().launch_ns);
  });
}

Tensors on_device(Rank& rank, int64_t bytes) {
  return {torch::ones({bytes / 4}, rank.runtime().device())};
}

TEST(Collectives, TakeWhatTheNetworkModelSays) {
  for (const char* spec : {"1x8:h100", "2x4:h100", "2x8:a100-80", "2x8:ascend910b", "1x8:mi300x",
                           "2x4:v100", "tpu-v4:2x2x4", "2x8:gaudi2", "1x8:h100,efficiency=ideal",
                           "2x4:h100,efficiency=ideal", "2x4:a100-80,nccl=2.21.5"}) {
    const auto parsed = ClusterSpec::parse(spec);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    const Network network(*parsed);
    std::vector<int> ranks(parsed->world_size());
    std::iota(ranks.begin(), ranks.end(), 0);
    one_device(spec, [&](Rank& rank) {
      auto group = rank.runtime().new_group({.name = "world"});
      for (const int64_t bytes : {int64_t{4}, 64 * int64_t{1024}, 4 * kMebibyte}) {
        Tensors tensors = on_device(rank, bytes);
        group->barrier()->wait();
        const int64_t ns = spent_ns(*rank.device(), [&] { group->allreduce(tensors)->wait(); });
        const int64_t model_ns = network.collective(CollectiveKind::kAllReduce, ranks, bytes).ns;
        const simulator::DeviceModel& device = rank.device()->model();
        const int64_t host_ns =
            simulator::collective_host_ns(device, simulator::kernel_table_of(device));
        EXPECT_EQ(ns, host_ns + model_ns) << spec << ", " << bytes;
      }
    });
  }
}

// The time that products take which run beside an all-reduce of 256 MiB and longer than it. The
// program waits behind them, or has taken the result's future before.
int64_t products_ns(const std::string& spec, bool communicates, bool by_future, uint64_t seed) {
  Cluster cluster(spec, {.seed = seed, .numerics = simulator::Numerics::kShapes});
  cluster.run_on_every_rank([&](Rank& rank) {
    auto group = rank.runtime().new_group({.name = "world"});
    Tensors tensors = on_device(rank, 256 * kMebibyte);
    const at::Tensor a = torch::ones({2048, 2048}, tensors[0].options().dtype(at::kBFloat16));
    a.mm(a);  // The first one also gets memory from the driver.
    group->barrier()->wait();
    auto work = communicates ? group->allreduce(tensors) : nullptr;
    const auto future = work && by_future ? work->getFuture() : nullptr;
    for (int i = 0; i < 100; ++i) a.mm(a);
    if (future) future->wait();
    if (work && !future) work->wait();
  });
  return absl::ToInt64Nanoseconds(cluster.elapsed());
}

TEST(Collectives, TakeMultiprocessorsFromProductsMeanwhile) {
  const std::string spec = "1x8:h100,launch=1ns";
  const Network network(*ClusterSpec::parse(spec));
  const std::vector<int> ranks = {0, 1, 2, 3, 4, 5, 6, 7};
  const simulator::CollectiveTime time =
      network.collective(CollectiveKind::kAllReduce, ranks, 256 * kMebibyte);
  ASSERT_GT(time.channels, 0);
  const double share =
      static_cast<double>(time.channels) / simulator::find_kernel_table("h100")->multiprocessors;
  const int64_t alone_ns = products_ns(spec, false, false, 0);
  const std::string ideal = spec + ",efficiency=ideal";
  const int64_t ideal_ns = products_ns(ideal, false, false, 0);
  for (const bool by_future : {false, true}) {
    const int64_t beside_ns = products_ns(spec, true, by_future, 0);
    EXPECT_NEAR(static_cast<double>(beside_ns - alone_ns) / (time.ns * share), 1, 0.01);
    EXPECT_EQ(products_ns(spec, true, by_future, 1), beside_ns) << "another seed";
    // Perfect networks take nothing.
    EXPECT_NEAR(products_ns(ideal, true, by_future, 0), ideal_ns, 100);
  }
}

TEST(Collectives, BeginWhenTheLastRankIsReady) {
  one_device("1x4:h100", [](Rank& rank) {
    auto group = rank.runtime().new_group({.name = "world"});
    Tensors tensors = on_device(rank, 1024);
    rank.device()->synchronize();
    if (rank.index() == 2) rank.runtime().sleep_for(absl::Milliseconds(5));
    const int64_t start_ns = rank.device()->host_ns();
    group->allreduce(tensors)->wait();
    rank.device()->synchronize();
    const int64_t waited_ns = rank.device()->host_ns() - start_ns;
    if (rank.index() == 2) {
      EXPECT_LT(waited_ns, 1'000'000);
    } else {
      EXPECT_GT(waited_ns, 5'000'000);
      EXPECT_LT(waited_ns, 6'000'000);
    }
  });
}

// Two messages over one link take twice as long as one; over two links, no longer.
TEST(Messages, ShareLinks) {
  constexpr int64_t kBytes = 64 * kMebibyte;
  auto exchange = [](const std::vector<std::pair<int, int>>& messages) {
    return [messages](Rank& rank) {
      auto group = rank.runtime().new_group({.name = "world"});
      Tensors tensors = on_device(rank, kBytes);
      group->barrier()->wait();
      std::vector<c10::intrusive_ptr<c10d::Work>> works;
      for (const auto& [from, to] : messages) {
        if (rank.index() == from) works.push_back(group->send(tensors, to, 0));
        if (rank.index() == to) works.push_back(group->recv(tensors, from, 0));
      }
      for (auto& work : works) work->wait();
    };
  };
  const std::string spec = "2x4:h100";
  const int64_t none = elapsed_ns(spec, exchange({}));
  const int64_t one = elapsed_ns(spec, exchange({{0, 4}})) - none;
  const int64_t apart = elapsed_ns(spec, exchange({{0, 4}, {1, 5}})) - none;
  EXPECT_LT(apart, one * 11 / 10);
  const std::string shared = "2x4:h100,nics=1,fabric=ethernet";
  const int64_t shared_one = elapsed_ns(shared, exchange({{0, 4}})) - none;
  const int64_t together = elapsed_ns(shared, exchange({{0, 4}, {1, 5}})) - none;
  EXPECT_GT(together, shared_one * 19 / 10);
  EXPECT_LT(together, shared_one * 21 / 10);
}

// A data-parallel step with a bucket per layer, so that communication can hide.
void train(Rank& rank, double bucket_cap_mb) {
  Accelerator accelerator(
      {.kwargs_handlers = {DistributedDataParallelKwargs{.bucket_cap_mb = bucket_cap_mb}}});
  torch::manual_seed(0);
  torch::nn::Sequential net;
  for (int layer = 0; layer < 4; ++layer) {
    net->push_back(torch::nn::Linear(512, 512));
    net->push_back(torch::nn::ReLU());
  }
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int step = 0; step < 3; ++step) {
    const at::Tensor input = torch::ones({16, 512}).to(accelerator.device());
    torch::Tensor loss = model(input).square().mean();
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
  }
}

int64_t training_ns(const std::string& spec, double bucket_cap_mb = 1, uint64_t seed = 0) {
  return elapsed_ns(spec, [&](Rank& rank) { train(rank, bucket_cap_mb); }, seed);
}

TOPOLOGY_SUITE(TrainingOnDevices, .also = {"2x4:h100"}, .min_ranks = 2,
               .hardware = simulator::Hardware::kGpu);

TEST_P(TrainingOnDevices, TakesTheSameNanosecondsUnderEverySeed) {
  const int64_t first = training_ns(topology());
  for (const uint64_t seed : simulator::kSeeds) {
    EXPECT_EQ(training_ns(topology(), 1, simulator::seed_of_run(seed)), first) << seed;
  }
}

TEST(Training, MoreBandwidthIsNeverSlowerAndMoreLatencyNeverFaster) {
  int64_t previous = INT64_MAX;
  for (const char* nic : {"50Gbps", "100Gbps", "200Gbps", "400Gbps", "800Gbps"}) {
    const int64_t ns = training_ns(std::string("2x4:h100,nic=") + nic);
    EXPECT_LE(ns, previous) << nic;
    previous = ns;
  }
  previous = 0;
  for (const char* latency : {"1us", "5us", "20us", "100us"}) {
    const int64_t ns = training_ns(std::string("2x4:h100,nic_latency=") + latency);
    EXPECT_GE(ns, previous) << latency;
    previous = ns;
  }
  EXPECT_LT(training_ns("2x4:h100,nic=400Gbps"), training_ns("2x4:h100,nic=10Gbps"));
}

TEST(Training, ADifferentTopologyTakesADifferentTime) {
  const int64_t one_node = training_ns("1x8:h100");
  const int64_t two_nodes = training_ns("2x4:h100,nic=25Gbps");
  EXPECT_LT(one_node, two_nodes);
  EXPECT_NE(training_ns("8x1:h100,nic=25Gbps"), two_nodes);
}

TEST(Training, OverlapNeverLosesToNoOverlap) {
  // The same collectives, either as soon as a gradient is there or after the backward pass.
  auto step = [](bool overlap) {
    return [overlap](Rank& rank) {
      auto group = rank.runtime().new_group({.name = "world"});
      const c10::Device device = rank.runtime().device();
      const at::Tensor a = torch::ones({1024, 1024}, device);
      std::vector<Tensors> gradients;
      std::vector<c10::intrusive_ptr<c10d::Work>> works;
      for (int layer = 0; layer < 5; ++layer) {
        gradients.push_back({a.mm(a)});
        if (!overlap) continue;
        works.push_back(group->allreduce(gradients.back()));
      }
      if (!overlap) {
        for (Tensors& gradient : gradients) works.push_back(group->allreduce(gradient));
      }
      for (auto& work : works) work->wait();
    };
  };
  for (const char* spec : {"1x8:h100", "2x4:h100", "2x4:v100", "tpu-v4:2x2x2"}) {
    EXPECT_LT(elapsed_ns(spec, step(true)), elapsed_ns(spec, step(false))) << spec;
  }
}

TEST(Timeouts, ARankThatComputesTooLongIsLate) {
  Cluster cluster("1x2:h100");
  try {
    cluster.run_on_every_rank([](Rank& rank) {
      auto group = rank.runtime().new_group({.name = "world", .timeout = absl::Milliseconds(1)});
      Tensors tensors = on_device(rank, 1024);
      const at::Tensor a = torch::ones({256, 256}, rank.runtime().device());
      // Enough kernels that their launches alone take the host longer than the group is patient.
      for (int i = 0; rank.index() == 1 && i < 2000; ++i) a.relu();
      group->allreduce(tensors)->wait();
    });
    FAIL() << "nobody was late";
  } catch (const simulator::ClusterError& error) {
    EXPECT_NE(std::string(error.what()).find("timed out: rank 0 waited until"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace accelerate
