// What the estimate and device maps say that a quantised model takes, beside what is held of it.
// Both count a byte, or half of one, for each value as HF Accelerate does; scales and the tables of
// numbers come on top, by amounts that are stated here.
#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/big_model/infer_device_map.h"
#include "accelerate/modules/module_state_dict.h"
#include "accelerate/quantization/four_bit.h"
#include "accelerate/quantization/models/load_and_quantize.h"
#include "accelerate/quantization/models/quantized_layers.h"
#include "launch/estimate/architecture.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using torch::Tensor;

constexpr int64_t kHidden = 192, kInner = 640, kLayers = 4;

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    up = register_module("up", torch::nn::Linear(kHidden, kInner));
    down = register_module("down", torch::nn::Linear(kInner, kHidden));
  }
  Tensor forward(const Tensor& x) { return x + down(up(x).relu()); }
  torch::nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int64_t i = 0; i < kLayers; ++i) {
      blocks.push_back(register_module(absl::StrCat("block", i), Block()));
    }
    head = register_module("head", torch::nn::Linear(kHidden, 32));
  }
  Tensor forward(Tensor x) {
    for (Block& block : blocks) x = block(x);
    return head(x);
  }
  std::vector<Block> blocks;
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Net);

BnbQuantizationConfig in_8_bits() { return {.load_in_8bit = true, .torch_dtype = "fp32"}; }

BnbQuantizationConfig in_4_bits(bool use_double_quant) {
  return {.load_in_4bit = true,
          .bnb_4bit_quant_type = "nf4",
          .bnb_4bit_use_double_quant = use_double_quant,
          .bnb_4bit_compute_dtype = "fp32"};
}

std::vector<BnbQuantizationConfig> configs() {
  return {in_8_bits(), in_4_bits(false), in_4_bits(true)};
}

std::string dtype_of(const BnbQuantizationConfig& config) {
  return config.load_in_8bit ? "int8" : "int4";
}

int64_t blocks_of(int64_t count, int64_t size) { return (count + size - 1) / size; }

// What is held of a weight [out, in] besides a byte, or half of one, for each value.
int64_t overhead_of(const BnbQuantizationConfig& config, int64_t out, int64_t in) {
  if (config.load_in_8bit) return 4 * out;  // a scale for each row
  const int64_t blocks = blocks_of(out * in, kFourBitBlock);
  const int64_t map = 16 * 4;
  if (!config.bnb_4bit_use_double_quant) return 4 * blocks + map;
  return blocks + 4 * blocks_of(blocks, kNestedBlock) + 256 * 4 + map;
}

// The head is not quantised.
int64_t overhead(const BnbQuantizationConfig& config) {
  return kLayers * (overhead_of(config, kInner, kHidden) + overhead_of(config, kHidden, kInner));
}

double size_of(const NamedSizes& sizes, const std::string& name) {
  for (const auto& [each, bytes] : sizes) {
    if (each == name) return bytes;
  }
  ADD_FAILURE() << "no size of " << name;
  return 0;
}

TEST(Sizes, AreTheSameInTheEstimateAndInDeviceMaps) {
  const Net net;
  launcher::estimate::Architecture architecture;
  for (const auto& item : net->named_parameters()) {
    architecture.tensors.push_back({.name = item.key(),
                                    .dtype = "F32",
                                    .elements = static_cast<double>(item.value().numel())});
  }
  const launcher::estimate::ModelSize size = launcher::estimate::model_size(architecture);
  for (const std::string dtype : {"int8", "int4"}) {
    const SizeOptions sizes{.dtype = dtype};
    EXPECT_EQ(launcher::estimate::size_in(dtype, size.total),
              size_of(compute_module_sizes(*net, sizes), ""));
    EXPECT_EQ(launcher::estimate::size_in(dtype, size.largest_layer),
              get_max_layer_size(*net, {}, sizes).bytes);
  }
}

// Names of the head and of biases, which keep their dtype.
SizeOptions sizes_of(const Net& net, const BnbQuantizationConfig& config) {
  SizeOptions sizes{.dtype = dtype_of(config)};
  for (const auto& item : net->named_parameters()) {
    const bool is_quantized = item.value().dim() == 2 && !item.key().starts_with("head");
    if (!is_quantized) sizes.special_dtypes[item.key()] = "float32";
  }
  return sizes;
}

TEST(Sizes, AreWhatIsHeldButForScalesAndTables) {
  for (const BnbQuantizationConfig& config : configs()) {
    Cluster cluster("1x1:h100");
    cluster.run_on_every_rank([&](Rank& rank) {
      const Net net;
      const double said = size_of(compute_module_sizes(*net, sizes_of(net, config)), "");
      const int64_t before = rank.runtime().device_memory()->in_use;
      const auto model = load_and_quantize_model(net, config);
      int64_t bytes = 0, texts = 0, tensors = 0;
      for (const auto& [name, tensor] : module_state_dict(*net)) {
        // Notes for files, of which a simulated device rounds each up like any tensor.
        const bool is_note = name.find("quant_state") != name.npos || name.ends_with("_format");
        (is_note ? texts : bytes) += static_cast<int64_t>(tensor.nbytes());
        ++tensors;
      }
      EXPECT_EQ(bytes, static_cast<int64_t>(said) + overhead(config)) << dtype_of(config);
      constexpr int64_t kRounding = 512;
      const int64_t held = rank.runtime().device_memory()->in_use - before;
      EXPECT_GE(held, bytes);
      EXPECT_LE(held, bytes + texts + kRounding * tensors) << dtype_of(config);
    });
  }
}

// A limit of two blocks' size by the rule has room for two of four, and a byte less for one.
TEST(Sizes, DecideWhatFitsOnADevice) {
  for (const BnbQuantizationConfig& given : configs()) {
    Cluster cluster("1x1:h100,devices=2");
    cluster.run_on_every_rank([&](Rank&) {
      const Net net;
      BnbQuantizationConfig config = resolve(given);
      config.skip_modules = std::vector<std::string>{"head"};
      config.keep_in_fp32_modules.emplace();
      const SizeOptions sizes{
          .dtype = dtype_of(config),
          .special_dtypes = {{"head.weight", "float32"}, {"head.bias", "float32"}}};
      const NamedSizes rule = compute_module_sizes(*net, sizes);
      // The first device keeps room for the largest layer.
      const double largest = get_max_layer_size(*net, {"Block"}, sizes).bytes;
      const double limit = size_of(rule, "block0") + size_of(rule, "block1");
      const auto blocks_on_first = [&](double room) {
        const MaxMemory limits = {{DevicePlacement::accelerator(0), room + largest},
                                  {DevicePlacement::accelerator(1), size_of(rule, "")}};
        const DeviceMap map = get_quantized_model_device_map(
            *net, config, BnbDeviceMap(std::string("sequential")), limits, {"Block"});
        int blocks = 0;
        for (; blocks < kLayers; ++blocks) {
          const DevicePlacement* const place = map.find(absl::StrCat("block", blocks));
          if (place == nullptr || place->index() != 0) break;
        }
        return blocks;
      };
      EXPECT_EQ(blocks_on_first(limit), 2);
      EXPECT_EQ(blocks_on_first(limit - 1), 1);
    });
  }
}

}  // namespace
}  // namespace accelerate
