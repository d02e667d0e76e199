// The functions about quantised layers: names and defaults, weights that are set, and codes in
// files.
#include <map>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/files/formats/offload_index.h"
#include "accelerate/modules/module_tensors.h"
#include "accelerate/quantization/four_bit.h"
#include "accelerate/quantization/int8.h"
#include "accelerate/quantization/models/load_and_quantize.h"
#include "accelerate/quantization/models/quantized_layers.h"
#include "accelerate/quantization/models/quantized_weight.h"
#include "accelerate/report/availability.h"
#include "integration_tests/quantization/quantized_models.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Rank;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// As loading does it: into files, where what was quantised before is written as it is.
TEST(Offload, WritesCodesThatADispatchedModelReads) {
  run([](Rank& rank) {
    const torch::NoGradGuard no_grad;
    FileSystem& files = rank.runtime().files();
    const BnbQuantizationConfig config = resolve({.load_in_8bit = true, .torch_dtype = "bf16"});
    auto loaded = load_and_quantize_model(empty_gpt(), config, {.weights_location = kCheckpoint});
    const Tensor expected = loaded(text().to(sim(0)));
    for (const bool is_quantized : {false, true}) {
      const lm::Lm values = gpt();
      lm::Lm net = empty_gpt();
      replace_with_bnb_layers(*net, config, get_keys_to_not_convert(*net));
      const std::string folder = absl::StrCat("/sim/codes ", is_quantized);
      OffloadIndex index;
      const auto offload = [&](const std::string& name, const Tensor& value,
                               const Tensor& statistics) {
        quantize_and_offload_8bit(*net, value, name, torch::kBFloat16, folder, index, statistics);
        EXPECT_TRUE(net->named_parameters()[name].is_meta()) << name;
      };
      for (const auto& item : values->named_parameters()) {
        const bool has_codes =
            is_quantized && quantized_bits(net->named_parameters()[item.key()]).has_value();
        if (!has_codes) {
          offload(item.key(), item.value(), {});
          continue;
        }
        const Int8Weight weight = quantize_rowwise(item.value().to(torch::kBFloat16));
        offload(item.key(), weight.data, weight.scb);
      }
      const size_t entries = index.size();
      offload("blocks.0.mlp.up.weight", values->named_parameters()["blocks.0.mlp.up.weight"], {});
      EXPECT_EQ(index.size(), entries) << "an entry was written twice";
      std::map<std::string, OffloadedTensor> by_name(index.begin(), index.end());
      EXPECT_EQ(by_name.at("blocks.0.mlp.up.weight").dtype, "int8");
      EXPECT_EQ(by_name.at("blocks.0.mlp.up.SCB").dtype, "float32");
      EXPECT_EQ(by_name.at("blocks.0.mlp.up.bias").dtype, "bfloat16");
      ASSERT_TRUE(save_offload_index(files, index, folder).ok());
      auto model = dispatch_model(
          net, map_of({"0", "1", "disk"}),
          {.offload_dir = folder, .operators = std::make_shared<QuantizedProducts>(config)});
      EXPECT_TRUE(at::equal(model(text().to(sim(0))), expected)) << is_quantized;
    }
    OffloadIndex index;
    lm::Lm net = empty_gpt();
    const auto error = [&](const std::string& name, const Tensor& value, const Tensor& statistics) {
      return error_of([&] {
        quantize_and_offload_8bit(*net, value, name, torch::kHalf, "/sim/none", index, statistics);
      });
    };
    EXPECT_THAT(error("blocks.9.w", torch::ones({2}), {}), HasSubstr("no parameter blocks.9.w"));
    EXPECT_THAT(error("blocks.0.mlp.up.weight", torch::ones({2}), {}), HasSubstr("of shape"));
    const Tensor whole = torch::ones(net->named_parameters()["blocks.0.mlp.up.weight"].sizes());
    EXPECT_THAT(error("blocks.0.mlp.up.weight", whole, torch::ones({whole.size(0)})),
                HasSubstr("is not kept in 8 bits"));
    replace_with_bnb_layers(*net, config);
    EXPECT_THAT(error("blocks.0.mlp.up.weight", whole, torch::ones({whole.size(0)})),
                HasSubstr("blocks.0.mlp.up.weight\" is a matrix of int8"));
    EXPECT_THAT(error("blocks.0.mlp.up.weight", whole.to(torch::kChar), torch::ones({3})),
                HasSubstr("blocks.0.mlp.up.SCB"));
    EXPECT_TRUE(index.empty());
  });
}

TEST(SetModuleTensor, KeepsAWeightQuantised) {
  run([](Rank&) {
    const torch::NoGradGuard no_grad;
    const Tensor values = torch::randn({3, 8});
    const Tensor input = torch::randn({2, 8});
    for (const bool in_8bit : {false, true}) {
      torch::nn::Sequential net(torch::nn::Linear(torch::nn::LinearOptions(8, 3).bias(false)));
      replace_with_bnb_layers(*net, resolve({.load_in_8bit = in_8bit,
                                             .load_in_4bit = !in_8bit,
                                             .bnb_4bit_compute_dtype = "fp32",
                                             .torch_dtype = "fp32"}));
      const Tensor weight = net->named_parameters()["0.weight"];
      const auto set = [&](c10::Device device, const SetModuleTensorOptions& options) {
        set_module_tensor_to_device(*net, "0.weight", device, options);
        EXPECT_EQ(quantized_bits(weight), in_8bit ? QuantizedBits::k8 : QuantizedBits::k4);
        EXPECT_EQ(weight.device(), device);
      };
      const Tensor rounded = in_8bit
                                 ? quantize_rowwise(values).dequantize(torch::kFloat)
                                 : quantize_4bit(values, {.type = FourBitType::kFp4}).dequantize();
      // A value is quantised, codes move, and what is gone comes again.
      for (const c10::Device device : {c10::Device(c10::kCPU), sim(1)}) {
        set(device, {.value = values});
        EXPECT_TRUE(at::equal(weight.cpu(), rounded));
        set(sim(0), {});
        EXPECT_TRUE(at::equal(weight.cpu(), rounded));
        set(c10::kMeta, {});
        EXPECT_THAT(error_of([&] { set(sim(0), {}); }), HasSubstr("needs a value"));
      }
      const Tensor codes =
          torch::tensor({{127, -127, 0, 1, 2, 3, 4, 5}}, torch::kChar).repeat({3, 1});
      const Tensor scb = torch::tensor({1.0, 2.0, 0.5});
      if (!in_8bit) {
        EXPECT_THAT(error_of([&] { set(sim(0), {.value = codes, .fp16_statistics = scb}); }),
                    HasSubstr("0.weight is not kept in 8 bits"));
        continue;
      }
      set(sim(1), {.value = codes, .fp16_statistics = scb.to(torch::kHalf)});
      EXPECT_TRUE(
          at::equal(weight.cpu(), Int8Weight{.data = codes, .scb = scb}.dequantize(torch::kFloat)));
      EXPECT_THAT(error_of([&] { set(sim(0), {.value = values, .fp16_statistics = scb}); }),
                  HasSubstr("its codes, int8 of shape [3, 8]"));
      EXPECT_THAT(
          error_of([&] { set(sim(0), {.value = codes, .fp16_statistics = scb.narrow(0, 0, 2)}); }),
          HasSubstr("0.weight has 3 rows"));
    }
  });
}

// ---- Names and defaults.

TEST(Defaults, AreThoseOfHfAccelerate) {
  const BnbQuantizationConfig config;
  EXPECT_FALSE(config.load_in_8bit || config.load_in_4bit || config.bnb_4bit_use_double_quant ||
               config.torch_dtype || config.skip_modules || config.keep_in_fp32_modules);
  EXPECT_EQ(config.llm_int8_threshold, 6.0);
  EXPECT_EQ(config.bnb_4bit_quant_type, "fp4");
  EXPECT_EQ(config.bnb_4bit_compute_dtype, BnbDtype("fp16"));
  const LoadAndQuantizeOptions options;
  EXPECT_TRUE(options.weights_location.empty() && options.no_split_module_classes.empty() &&
              options.offload_folder.empty());
  EXPECT_FALSE(options.device_map || options.max_memory || options.offload_state_dict ||
               options.base_model_prefix);
  run([](Rank& rank) {
    // Each with as few arguments as HF Accelerate needs.
    torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
    const BnbQuantizationConfig four = resolve({.load_in_4bit = true});
    EXPECT_EQ(get_quantized_model_device_map(*net, four).entries().size(), 1U);
    EXPECT_THAT(get_keys_to_not_convert(*net), ElementsAre("1"));
    EXPECT_EQ(get_parameter_device(*net), c10::Device(c10::kCPU));
    EXPECT_FALSE(has_4bit_bnb_layers(*net));
    EXPECT_EQ(replace_with_bnb_layers(*net, four).size(), 2U);
    EXPECT_TRUE(has_4bit_bnb_layers(*net));
    torch::nn::Sequential other(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
    auto model = load_and_quantize_model(other, {.load_in_8bit = true});
    EXPECT_TRUE(is_loaded_in_8bit(*model) && !is_loaded_in_4bit(*model) && is_quantized(*model));
    EXPECT_TRUE(is_bnb_available() && is_4bit_bnb_available() && is_8bit_bnb_available() &&
                is_bitsandbytes_multi_backend_available() &&
                is_bnb_available("0.48.1", rank.runtime()));
  });
}

}  // namespace
}  // namespace accelerate
