// Layers in a narrow dtype on simulated devices: the bytes that they take there, how they move, and
// how they are saved. One shape of the cluster each: the bytes are worked out for its devices.
#include <cstdint>
#include <iostream>
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/big_model/infer_device_map.h"
#include "accelerate/hooks/align_devices.h"
#include "accelerate/hooks/hooked.h"
#include "accelerate/hooks/layerwise_casting.h"
#include "accelerate/hooks/model_hook.h"
#include "accelerate/modules/module_state_dict.h"
#include "accelerate/modules/module_tensors.h"
#include "accelerate/modules/value_at_use.h"
#include "integration_tests/hooks/models.h"
#include "simulator/cluster/cluster.h"
#include "simulator/device/sim_device.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {
namespace {

namespace nn = torch::nn;

using simulator::Cluster;
using simulator::DeviceMemory;
using simulator::Rank;
using simulator::SimDisk;
using ::testing::Contains;
using ::testing::Pair;
using torch::Tensor;

TEST(CastLayersOnADevice, TakeTheBytesOfTheNarrowDtype) {
  constexpr at::ScalarType kNarrow = at::kFloat8_e4m3fn, kWide = at::kBFloat16;
  Cluster cluster("1x1:h100");
  cluster.run_on_every_rank([](Rank& rank) {
    DeviceMemory& memory = rank.device()->memory();
    const c10::Device device = rank.runtime().device();
    const auto gpt = seeded<PlainGpt>();
    gpt->to(device, kWide);
    const auto expected = seeded<PlainGpt>();
    expected->to(kWide);
    {
      const torch::NoGradGuard no_grad;
      for (auto& item : expected->named_parameters()) {
        const bool is_cast = item.key().find("norm") == std::string::npos &&
                             !item.key().starts_with("tokens") && !item.key().starts_with("head");
        if (is_cast) item.value().copy_(item.value().to(kNarrow));
      }
    }
    const int64_t wide = memory.in_use();
    attach_layerwise_casting_hooks(*gpt, kNarrow, kWide, {.skip_modules_pattern = {"^head"}});
    int64_t saved = 0;
    for (const auto& item : gpt->named_parameters()) {
      if (find_maker(item.value()) == nullptr) continue;
      const auto rounded = [](int64_t bytes) { return (bytes + 511) / 512 * 512; };
      saved += rounded(2 * item.value().numel()) - rounded(item.value().numel());
    }
    EXPECT_GT(saved, wide / 3);
    EXPECT_EQ(memory.in_use(), wide - saved);
    for (const bool gradients : {false, true}) {
      const torch::AutoGradMode mode(gradients);
      const Tensor output = gpt->forward(some_ids().to(device));
      EXPECT_TRUE(output.cpu().equal(expected->forward(some_ids())));
    }
    EXPECT_EQ(memory.in_use(), wide - saved);
    gpt->forward(some_ids().to(device)).sum().backward();
    expected->forward(some_ids()).sum().backward();
    const auto gradients = expected->named_parameters();
    for (const auto& item : gpt->named_parameters()) {
      EXPECT_TRUE(item.value().grad().cpu().equal(gradients[item.key()].grad())) << item.key();
    }
    std::cout << "GPT of " << wide << " bytes on the device: " << wide - saved
              << " with fp8 layers\n";
  });
}

TEST(CastLayersOnADevice, MoveNarrowWithHooks) {
  Cluster cluster("1x1:h100,devices=2");
  cluster.run_on_every_rank([](Rank& rank) {
    DeviceMemory& memory = rank.device()->memory();
    const auto gpt = seeded<HookedGpt>();
    const auto expected = seeded<PlainGpt>();
    for (nn::Module* each :
         {static_cast<nn::Module*>(gpt.get()), static_cast<nn::Module*>(expected.get())}) {
      attach_layerwise_casting_hooks(*each, at::kFloat8_e4m3fn, at::kFloat);
    }
    const torch::NoGradGuard no_grad;
    attach_align_device_hook(*gpt, {.execution_device = rank.runtime().device(), .offload = true});
    const int64_t at_rest = memory.in_use();
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(gpt->forward(some_ids()).cpu().equal(expected->forward(some_ids())));
      EXPECT_EQ(memory.in_use(), at_rest);
    }
    // Narrow values, those of one operator, and activations.
    int64_t block = 0;
    for (const auto& [name, tensor] : named_module_tensors(gpt->block(0), {.recurse = true})) {
      block += static_cast<int64_t>(tensor.nbytes());
    }
    EXPECT_LT(memory.peak(), block / 4 + 4 * kWidth * kWidth * 4 + 2 * kLength * kWidth * 4 * 20);
    // The hooks go, the casts with them.
    remove_hook_from_submodules(*gpt);
    EXPECT_EQ(gpt->block(1).up->weight.scalar_type(), at::kFloat8_e4m3fn);
    EXPECT_TRUE(gpt->block(1).up->weight.is_cpu());
  });
}

TEST(CastLayersOnADevice, AreSavedNarrow) {
  Cluster cluster("1x2:h100", {.disk = std::make_shared<SimDisk>()});
  cluster.run_on_every_rank([](Rank& rank) {
    const auto gpt = seeded<PlainGpt>(), loaded = std::make_shared<PlainGpt>();
    attach_layerwise_casting_hooks(*gpt, at::kHalf, at::kFloat);
    attach_layerwise_casting_hooks(*loaded, at::kHalf, at::kFloat);
    const torch::NoGradGuard no_grad;
    const Tensor expected = gpt->forward(some_ids());
    EXPECT_EQ(module_state_dict(*gpt).back().second.scalar_type(), at::kHalf);
    const NamedSizes sizes = compute_module_sizes(*gpt);
    EXPECT_THAT(sizes, Contains(Pair("blocks.0.up", 2 * (4 * kWidth * kWidth + 4 * kWidth))));
    Accelerator accelerator;
    auto model = accelerator.prepare(gpt);
    const Tensor ids = some_ids().to(accelerator.device());
    const std::vector<KeptTensor> kept = kept_tensors("weight", gpt->block(0).up->weight);
    EXPECT_EQ(kept.front().tensor.device(), accelerator.device());
    EXPECT_EQ(kept.front().tensor.scalar_type(), at::kHalf);
    EXPECT_TRUE(model(ids).cpu().equal(expected));
    accelerator.save_model(model, "/sim/model");
    load_checkpoint_in_model(rank.runtime().files(), *loaded, "/sim/model");
    EXPECT_TRUE(loaded->forward(some_ids()).equal(expected));
    accelerator.save_state("/sim/state");
    model->block(0).up->weight.zero_();
    EXPECT_FALSE(model(ids).cpu().equal(expected));
    accelerator.load_state("/sim/state");
    EXPECT_TRUE(model(ids).cpu().equal(expected));
  });
}

}  // namespace
}  // namespace accelerate
