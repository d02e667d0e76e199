// What dispatched models cost: virtual time with copies and reads beside computing, and memory of
// devices and the host. One shape of the cluster each, by which the numbers are worked out.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <c10/util/ThreadLocalDebugInfo.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "accelerate/big_model/empty_model.h"
#include "accelerate/checkpoint/folder/save_load.h"
#include "accelerate/dispatch/dispatch.h"
#include "integration_tests/dispatch/models.h"
#include "integration_tests/sharding/gauges.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Numerics;
using simulator::Rank;
using simulator::SimDisk;

// Layers of one size.
struct StackImpl : torch::nn::Module {
  StackImpl(int count, int64_t size) {
    layers = register_module("layers", torch::nn::ModuleList());
    for (int i = 0; i < count; ++i) {
      layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(size, size).bias(false)));
    }
  }
  Tensor forward(Tensor x) {
    for (const auto& layer : *layers) x = layer->as<torch::nn::Linear>()->forward(x);
    return x;
  }
  torch::nn::ModuleList layers;
};
TORCH_MODULE(Stack);

constexpr int kLayers = 16;
constexpr int64_t kSize = 1024;
constexpr int64_t kLayerBytes = kSize * kSize * 4;

template <typename Model>
double milliseconds(Rank& rank, Model&& model, const Tensor& x) {
  const auto finish = [&] {
    for (simulator::SimDevice* device : rank.devices()) device->synchronize();
    return rank.runtime().now();
  };
  const absl::Time begin = finish();
  model.forward(x);
  return absl::ToDoubleMilliseconds(finish() - begin);
}

// A model whose layers take about as long to copy as to compute, more or less: at most 1.15 of the
// longer, where without prefetching, as in the first pass, it takes the sum.
TEST(Time, OfAPassIsThatOfCopyingOrComputing) {
  std::printf("rows   | copy ms | compute ms | without prefetch | with | of the longer\n");
  for (const int64_t rows : {1, 8'192, 32'768, 65'536, 131'072}) {
    Cluster cluster("1x1:h100,host=2GB/s,efficiency=ideal", {.numerics = Numerics::kShapes});
    cluster.run_on_every_rank([&](Rank& rank) {
      const torch::NoGradGuard no_grad;
      Stack net(kLayers, kSize);
      const Tensor x = torch::empty({rows, kSize}, sim(0));
      const double copy = kLayers * kLayerBytes / 2e9 * 1e3;
      const double compute = [&] {
        Stack resident(kLayers, kSize);
        resident->to(sim(0));
        return milliseconds(rank, *resident, x);
      }();
      auto model = cpu_offload(net, {.execution_device = sim(0)});
      const double first = milliseconds(rank, model, x);
      const double later = milliseconds(rank, model, x);
      const double longer = std::max(copy, compute);
      std::printf("%6d | %7.2f | %10.2f | %16.2f | %5.2f | %.2f\n", static_cast<int>(rows), copy,
                  compute, first, later, later / longer);
      EXPECT_NEAR(first, copy + compute, 0.05 * first);
      EXPECT_LE(later, 1.15 * longer);
      EXPECT_EQ(milliseconds(rank, model, x), later);
    });
  }
}

TEST(Time, OfAPassIsThatOfReadingCopyingOrComputing) {
  std::printf(
      "rows   | read ms | copy ms | compute ms | without prefetch | with | of the longest\n");
  for (const int64_t rows : {1, 32'768, 65'536}) {
    for (const double disk : {1.0, 4.0}) {
      Cluster cluster(absl::StrCat("1x1:h100,efficiency=ideal,host=2GB/s,disk=", disk,
                                   "GB/s,disk_latency=20us"),
                      {.numerics = Numerics::kShapes, .disk = std::make_shared<SimDisk>()});
      cluster.run_on_every_rank([&](Rank& rank) {
        const torch::NoGradGuard no_grad;
        Stack net(kLayers, kSize);
        const Tensor x = torch::empty({rows, kSize}, sim(0));
        const double read = kLayers * kLayerBytes / disk / 1e9 * 1e3;
        const double copy = kLayers * kLayerBytes / 2e9 * 1e3;
        const double compute = [&] {
          Stack resident(kLayers, kSize);
          resident->to(sim(0));
          return milliseconds(rank, *resident, x);
        }();
        auto model = disk_offload(net, kFolder, {.execution_device = sim(0)});
        const double first = milliseconds(rank, model, x);
        milliseconds(rank, model, x);
        // The next one's first layer is being read since the end of this one.
        const double later = milliseconds(rank, model, x);
        const double longest = std::max({read, copy, compute});
        std::printf("%6d | %7.2f | %7.2f | %10.2f | %16.2f | %5.2f | %.2f\n",
                    static_cast<int>(rows), read, copy, compute, first, later, later / longest);
        EXPECT_LE(later, 1.15 * longest);
        EXPECT_GE(first, later);
      });
    }
  }
}

TEST(Memory, OfOffloadedLayersIsThatOfTwo) {
  Cluster cluster("1x1:h100,devices=1");
  cluster.run_on_every_rank([](Rank& rank) {
    constexpr int64_t kSmall = 128;
    constexpr int64_t kBytes = kSmall * kSmall * 4;
    simulator::DeviceMemory& memory = rank.device()->memory();
    Stack first(6, kSmall), second(6, kSmall);
    auto one = cpu_offload(first, {.execution_device = sim(0)});
    auto other = cpu_offload(second, {.execution_device = sim(0)});
    const Tensor x = torch::ones({1, kSmall}, sim(0));
    const int64_t before = memory.in_use();
    // With gradients the last layers stay for the backward pass, but not beside another model's.
    Tensor sum = one(x).sum();
    const int64_t activations = 8 * 512;
    EXPECT_LE(memory.in_use() - before, 2 * kBytes + activations);
    sum = sum + other(x).sum();
    EXPECT_LE(memory.in_use() - before, 2 * kBytes + 2 * activations);
    EXPECT_LE(memory.peak() - before, 2 * kBytes + 2 * activations);
    sum.backward();
    EXPECT_LE(memory.peak() - before, 3 * kBytes + 2 * activations);
    EXPECT_LE(memory.in_use() - before, 2 * activations);
  });
}

// Two groups would not fit: the second is copied when the first one is let go.
TEST(Memory, ForOneGroupIsEnough) {
  constexpr int64_t kSmall = 128;
  constexpr int64_t kBytes = kSmall * kSmall * 4;
  for (const bool has_files : {false, true}) {
    Cluster cluster(absl::StrCat("1x1:h100,efficiency=ideal,mem=", kBytes + 4096),
                    {.disk = std::make_shared<SimDisk>()});
    cluster.run_on_every_rank([&](Rank& rank) {
      torch::manual_seed(4);
      Stack net(6, kSmall);
      const Tensor x = torch::ones({1, kSmall});
      const Tensor expected = net->forward(x).detach();
      const torch::NoGradGuard no_grad;
      auto model = has_files ? disk_offload(net, kFolder, {.execution_device = sim(0)})
                             : cpu_offload(net, {.execution_device = sim(0)});
      for (int pass = 0; pass < 3; ++pass) EXPECT_TRUE(torch::equal(model(x), expected));
      EXPECT_GT(rank.device()->memory().peak(), kBytes);
    });
  }
}

// Tokens to tokens through many layers.
struct DeepImpl : torch::nn::Module {
  explicit DeepImpl(int count) : stack(count, kSize) {
    tokens = register_module("tokens", torch::nn::Embedding(64, kSize));
    register_module("stack", stack.ptr());
    head = register_module("head", torch::nn::Linear(kSize, 64));
  }
  Tensor forward(const Tensor& x) { return head(stack->forward(tokens(x))); }
  torch::nn::Embedding tokens{nullptr};
  Stack stack;
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Deep);

// With the token that the logits of the last one say.
Tensor longer(const Tensor& text, const Tensor& logits) {
  return torch::cat({text, logits.select(1, -1).argmax(-1, /*keepdim=*/true)}, 1);
}

// 512 MiB of weights on a device of 64 MiB and a host that may have 96 MiB of tensors.
TEST(Memory, AModelOfEightTimesTheDeviceLoadsAndGenerates) {
  constexpr int kDeep = 128;
  constexpr int64_t kHost = 96 << 20;
  const auto disk = std::make_shared<SimDisk>();
  // The model of one layer at a time.
  const auto weight_of = [](int layer) {
    torch::manual_seed(100 + layer);
    return torch::randn({kSize, kSize}) / 32;
  };
  std::vector<Tensor> expected;
  torch::manual_seed(1);
  Deep ends(0);
  {
    const torch::NoGradGuard no_grad;
    NamedTensors stored;
    for (int i = 0; i < kDeep; ++i) {
      stored.emplace_back(absl::StrCat("stack.layers.", i, ".weight"), weight_of(i));
    }
    Tensor text = torch::arange(3).view({1, 3});
    for (int token = 0; token < 3; ++token) {
      Tensor x = ends->tokens(text);
      for (int i = 0; i < kDeep; ++i) x = torch::linear(x, stored[i].second);
      expected.push_back(ends->head(x));
      text = longer(text, expected.back());
    }
    for (const auto& each : ends->named_parameters()) {
      stored.emplace_back(each.key(), each.value().detach());
    }
    save_model(*disk, stored, "/sim/model");
  }
  Cluster cluster("1x1:h100,mem=64MiB,efficiency=ideal", {.disk = disk});
  cluster.run_on_every_rank([&](Rank& rank) {
    const torch::NoGradGuard no_grad;
    Deep net = [&] {
      const EmptyInit empty = init_empty_weights();
      return Deep(kDeep);
    }();
    const auto gauge = std::make_shared<HostGauge>();
    const c10::DebugInfoGuard watched(c10::DebugInfoKind::PROFILER_STATE, gauge);
    MaxMemory limits = {{DevicePlacement::accelerator(0), 52 << 20},
                        {DevicePlacement::cpu(), 72 << 20}};
    auto model = load_checkpoint_and_dispatch(rank.runtime().files(), net, "/sim/model",
                                              {.device_map = std::string("sequential"),
                                               .max_memory = limits,
                                               .offload_folder = kFolder,
                                               .strict = true});
    Tensor text = torch::arange(3).view({1, 3});
    for (int token = 0; token < 3; ++token) {
      const Tensor logits = model(text);
      EXPECT_TRUE(torch::equal(logits, expected[token])) << token;
      text = longer(text, logits);
    }
    const DeviceMemoryUse device = *rank.runtime().device_memory();
    std::printf("512 MiB of weights: device peak %.1f of %.1f MiB, host peak %.1f MiB\n",
                static_cast<double>(device.peak) / (1 << 20),
                static_cast<double>(device.capacity) / (1 << 20),
                static_cast<double>(gauge->peak) / (1 << 20));
    EXPECT_LE(gauge->peak, kHost);
    EXPECT_GT(gauge->peak, kHost / 2);
  });
}

}  // namespace
}  // namespace accelerate
