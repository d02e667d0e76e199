// Models with quantised weights: what they compute on any devices, how they are saved, and what bad
// input gets.
// One shape of the cluster each: placements name its devices.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/modules/module_state_dict.h"
#include "accelerate/quantization/bnb_layout.h"
#include "accelerate/quantization/four_bit.h"
#include "accelerate/quantization/models/quantized_weight.h"
#include "integration_tests/quantization/quantized_models.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using simulator::SimDisk;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A plain model that has the values of which a quantised one has the codes.
lm::Lm with_rounded_weights(const BnbQuantizationConfig& given) {
  const BnbQuantizationConfig config = resolve(given);
  lm::Lm net = gpt();
  const torch::NoGradGuard no_grad;
  net->to(config.remaining_dtype());
  for (const auto& item : net->named_parameters()) {
    const bool is_layer = item.value().dim() == 2 && item.key().starts_with("blocks.");
    if (!is_layer) continue;
    item.value().copy_(
        quantize_4bit(item.value(), {.type = config.quant_type(),
                                     .use_double_quant = config.bnb_4bit_use_double_quant})
            .dequantize());
  }
  return net;
}

TEST(FourBits, ComputesWithTheRoundedWeights) {
  run([](Rank&) {
    for (const BnbQuantizationConfig& config : four_bit_configs()) {
      const torch::NoGradGuard no_grad;
      lm::Lm plain = with_rounded_weights(config);
      plain->to(sim(0));
      const Tensor expected = plain->forward(text().to(sim(0)));
      for (const auto& placements : {std::vector<std::string>{"0"}, {"0", "1"}, {"1", "0", "1"}}) {
        auto model = load_and_quantize_model(
            empty_gpt(), config,
            {.weights_location = kCheckpoint, .device_map = map_of(placements)});
        for (int pass = 0; pass < 2; ++pass) {
          EXPECT_TRUE(at::equal(model(text().to(sim(0))), expected)) << name_of(config);
        }
        EXPECT_EQ(quantized_bits(model->named_parameters()["blocks.1.mlp.up.weight"]),
                  QuantizedBits::k4);
      }
      // The weights are there without the handle as well.
      lm::Lm net = gpt();
      net->to(sim(0));
      {
        const auto model = load_and_quantize_model(net, config);
      }
      EXPECT_TRUE(at::equal(net->forward(text().to(sim(0))), expected)) << name_of(config);
    }
  });
}

TEST(EightBits, ComputesTheSameOnAnyDevices) {
  run([](Rank&) {
    const torch::NoGradGuard no_grad;
    const BnbQuantizationConfig config = {.load_in_8bit = true, .torch_dtype = "bf16"};
    lm::Lm plain = gpt();
    plain->to(torch::kBFloat16);
    plain->to(sim(0));
    const Tensor high = plain->forward(text().to(sim(0)));
    Tensor expected;
    for (const Placing& placing : placings()) {
      auto model =
          load_and_quantize_model(empty_gpt(), config,
                                  {.weights_location = kCheckpoint,
                                   .device_map = placing.map(lm_case("", lm::Blocks::kGpt)),
                                   .offload_folder = absl::StrCat("/sim/", placing.name)});
      for (int pass = 0; pass < 3; ++pass) {
        const Tensor output = model(text().to(sim(0)));
        if (!expected.defined()) expected = output;
        EXPECT_TRUE(at::equal(output, expected)) << placing.name;
      }
      if (model.state()->residency() != nullptr) {
        EXPECT_EQ(model.state()->residency()->bytes_in_memory(), 0) << placing.name;
      }
    }
    EXPECT_FALSE(at::equal(expected, high));
    EXPECT_LT((expected - high).to(at::kFloat).norm().item<double>(),
              0.05 * high.to(at::kFloat).norm().item<double>());
  });
}

// On a device, where LibTorch's operators make values, few are made at a time.
TEST(FourBits, MakesValuesInLittleMemory) {
  constexpr int64_t kRows = 5000, kColumns = 2048, kBlocks = kRows * kColumns / 64;
  for (const bool use_double_quant : {false, true}) {
    run([&](Rank& rank) {
      torch::manual_seed(1);
      const FourBitTensor packed =
          quantize_4bit(torch::randn({kRows, kColumns}),
                        {.type = FourBitType::kNf4, .use_double_quant = use_double_quant});
      const FourBitTensor there = packed.to(sim(0));
      const int64_t before = rank.runtime().device_memory()->in_use;
      const Tensor values = there.dequantize(at::kBFloat16);
      const int64_t beside =
          rank.runtime().device_memory()->peak - before - static_cast<int64_t>(values.nbytes());
      std::printf("making %lld values of 4 bits takes %.2f MiB beside them\n",
                  static_cast<long long>(kRows * kColumns),
                  static_cast<double>(beside) / (1 << 20));
      EXPECT_LE(beside, 8 * internal::kValuesAtATime + 16 * kBlocks);
      EXPECT_TRUE(at::equal(values.cpu(), packed.dequantize(at::kBFloat16)));
    });
  }
}

// ---- Saving.

TEST(Saving, IsInBitsandbytesNamesAndLoadsOnOtherDevices) {
  std::vector<BnbQuantizationConfig> configs = four_bit_configs();
  configs.push_back({.load_in_8bit = true, .torch_dtype = "bf16"});
  run([&](Rank& rank) {
    const torch::NoGradGuard no_grad;
    FileSystem& files = rank.runtime().files();
    for (const BnbQuantizationConfig& config : configs) {
      const std::string folder = absl::StrCat("/sim/saved ", name_of(config));
      Tensor expected;
      {
        auto model =
            load_and_quantize_model(empty_gpt(), config, {.weights_location = kCheckpoint});
        expected = model(text().to(sim(0)));
        save_model(files, get_state_dict_offloaded_model(*model), folder);
      }
      const NamedTensors saved = load_state_dict(files, folder + "/model.safetensors");
      std::map<std::string, Tensor> by_name(saved.begin(), saved.end());
      const std::string weight = "blocks.2.mlp.up.weight";
      if (config.load_in_8bit) {
        EXPECT_EQ(by_name.at(weight).scalar_type(), at::kChar);
        EXPECT_EQ(by_name.at("blocks.2.mlp.up.SCB").scalar_type(), at::kFloat);
      } else {
        EXPECT_EQ(by_name.at(weight).scalar_type(), at::kByte);
        EXPECT_TRUE(by_name.contains(weight + ".absmax"));
        EXPECT_EQ(by_name.contains(weight + ".nested_absmax"), config.bnb_4bit_use_double_quant);
        EXPECT_TRUE(by_name.contains(
            absl::StrCat(weight, ".quant_state.bitsandbytes__", config.bnb_4bit_quant_type)));
      }
      std::vector<std::vector<std::string>> maps = {{"0"}, {"1", "0"}};
      if (config.load_in_8bit) maps.push_back({"0", "cpu", "disk"});
      for (const auto& placements : maps) {
        auto model = load_and_quantize_model(
            empty_gpt(), config,
            {.weights_location = folder,
             .device_map = map_of(placements),
             .offload_folder = absl::StrCat("/sim/offload of ", name_of(config))});
        EXPECT_TRUE(at::equal(model(text().to(sim(0))), expected)) << name_of(config);
      }
    }
  });
}

TEST(Saving, RefusesCodesOfAnotherKind) {
  run([&](Rank& rank) {
    FileSystem& files = rank.runtime().files();
    {
      auto model =
          load_and_quantize_model(empty_gpt(), {.load_in_4bit = true, .bnb_4bit_quant_type = "nf4"},
                                  {.weights_location = kCheckpoint});
      save_model(files, get_state_dict_offloaded_model(*model), "/sim/nf4");
    }
    const auto error = [&](const BnbQuantizationConfig& config, const std::string& checkpoint) {
      return error_of([&] {
        (void)load_and_quantize_model(empty_gpt(), config, {.weights_location = checkpoint});
      });
    };
    EXPECT_THAT(error({.load_in_8bit = true}, "/sim/nf4"),
                HasSubstr("blocks.0.attention.qkv.weight"));
    {
      auto model = load_and_quantize_model(empty_gpt(), {.load_in_8bit = true},
                                           {.weights_location = kCheckpoint});
      save_model(files, get_state_dict_offloaded_model(*model), "/sim/int8");
    }
    // Codes are not taken for values.
    const auto in_int8 = AllOf(HasSubstr("/sim/int8"), HasSubstr(".weight\" is quantised there"));
    EXPECT_THAT(error({.load_in_8bit = true, .skip_modules = std::vector<std::string>{"blocks.2"}},
                      "/sim/int8"),
                in_int8);
    EXPECT_THAT(error_of([&] { load_checkpoint_in_model(files, *gpt(), "/sim/int8"); }), in_int8);
    NamedTensors broken = module_state_dict(*gpt());
    for (auto& [name, tensor] : broken) {
      if (name == "blocks.3.mlp.up.weight") tensor = at::full_like(tensor, NAN);
    }
    save_model(files, broken, "/sim/broken");
    for (const bool in_8bit : {false, true}) {
      EXPECT_THAT(error({.load_in_8bit = in_8bit, .load_in_4bit = !in_8bit}, "/sim/broken"),
                  AllOf(HasSubstr("blocks.3.mlp.up.weight"), HasSubstr("cannot be quantised")));
    }
    NamedTensors half = module_state_dict(*gpt());
    std::erase_if(half, [](const auto& each) { return each.first == "blocks.3.mlp.up.weight"; });
    save_model(files, half, "/sim/half");
    for (const bool in_8bit : {false, true}) {
      EXPECT_THAT(error({.load_in_8bit = in_8bit, .load_in_4bit = !in_8bit}, "/sim/half"),
                  AllOf(HasSubstr("/sim/half has no values for quantised weights"),
                        HasSubstr("blocks.3.mlp.up.weight")));
    }
    EXPECT_THAT(error({.load_in_8bit = true}, ""), HasSubstr("`weights_location` needs"));
    EXPECT_THAT(error_of([&] {
                  (void)load_and_quantize_model(gpt(), {.load_in_8bit = true},
                                                {.weights_location = kCheckpoint});
                }),
                HasSubstr("has values already"));
  });
}

// bitsandbytes' text beside a weight describes it, whatever the configuration says.
TEST(Saving, InFourBitsIsReadAsItDescribesItself) {
  run([](Rank& rank) {
    const torch::NoGradGuard no_grad;
    FileSystem& files = rank.runtime().files();
    const Tensor input = torch::arange(2. * 48).sin().view({2, 48}).to(torch::kFloat);
    const auto net_of = [] { return torch::nn::Sequential(torch::nn::Linear(48, 32)); };
    const auto load = [&](const std::string& folder, const BnbQuantizationConfig& given) {
      auto net = [&] {
        const EmptyInit empty = init_empty_weights();
        return net_of();
      }();
      BnbQuantizationConfig config = given;
      config.bnb_4bit_compute_dtype = "fp32";
      config.torch_dtype = "fp32";
      config.skip_modules.emplace();
      return load_and_quantize_model(net.ptr(), config, {.weights_location = folder});
    };
    int number = 0;
    for (const FourBitType type : {FourBitType::kNf4, FourBitType::kFp4}) {
      for (const int64_t block_size : {32, 64, 128, 256, 512, 1024, 2048, 4096}) {
        for (const int64_t nested_block_size : {0, 64, 256}) {
          auto plain = net_of();
          auto& layer = *plain->ptr<torch::nn::LinearImpl>(0);
          const FourBitTensor packed = quantize_4bit(
              layer.weight, {.type = type,
                             .use_double_quant = nested_block_size > 0,
                             .block_size = block_size,
                             .nested_block_size = std::max<int64_t>(nested_block_size, 64)});
          layer.weight.copy_(packed.dequantize());
          NamedTensors stored = {{"0.bias", layer.bias}};
          for (const auto& [name, tensor] : to_bnb("0.weight", packed)) {
            // As quant_storage has it.
            const bool is_stored_otherwise = name == "0.weight" && block_size > 64;
            stored.emplace_back(name, is_stored_otherwise
                                          ? tensor.flatten().view(torch::kBFloat16).unsqueeze(1)
                                          : tensor);
          }
          const std::string folder = absl::StrCat("/sim/stored_", number++);
          save_model(files, stored, folder);
          for (const char* configured : {"nf4", "fp4"}) {
            auto model = load(folder, {.load_in_4bit = true, .bnb_4bit_quant_type = configured});
            EXPECT_TRUE(
                torch::allclose(model(input.to(sim(0))).cpu(), plain->forward(input), 1e-4, 1e-5))
                << folder;
            // It is saved as it was, and values may still take the place of codes.
            const NamedTensors state = get_state_dict_offloaded_model(*model);
            EXPECT_EQ(state.size(), stored.size());
            EXPECT_EQ(quantized_bits(model->named_parameters()["0.weight"]), QuantizedBits::k4);
            load_module_state_dict(*model, {{"0.weight", layer.weight}}, {.strict = false});
          }
        }
      }
    }
    // A count that the text does not have.
    NamedTensors wrong = {{"0.bias", torch::zeros({32})}};
    for (const auto& [name, tensor] :
         to_bnb("0.weight", quantize_4bit(torch::randn({32, 48}), {.block_size = 128}))) {
      wrong.emplace_back(name, name.ends_with(".absmax") ? torch::ones({24}) : tensor);
    }
    save_model(files, wrong, "/sim/wrong");
    EXPECT_THAT(
        error_of([&] { (void)load("/sim/wrong", {.load_in_4bit = true}); }),
        AllOf(HasSubstr("0.weight.absmax"), HasSubstr("24 values"), HasSubstr("blocks of 128")));
    auto other = [&] {
      const EmptyInit empty = init_empty_weights();
      return torch::nn::Sequential(torch::nn::Linear(24, 64));
    }();
    EXPECT_THAT(
        error_of([&] {
          (void)load_and_quantize_model(
              other.ptr(), {.load_in_4bit = true, .skip_modules = std::vector<std::string>{}},
              {.weights_location = "/sim/stored_6"});
        }),
        AllOf(HasSubstr("\"0.weight\""), HasSubstr("blocks of 128"), HasSubstr("[64, 24]")));
  });
}

// A layer in 4 bits beside a tensor under two names, and buffers.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    layer = register_module("layer", torch::nn::Linear(64, 64));
    encoder = register_parameter("encoder", torch::ones({4}));
    register_parameter("head", encoder);
    register_parameter("other", torch::ones({4}));
    inv_freq = register_buffer("inv_freq", torch::full({4}, 0.1));
    register_module("last", torch::nn::Linear(4, 4));
  }
  torch::nn::Linear layer{nullptr};
  Tensor encoder, inv_freq;
};

TEST(Modules, OfALoadedModelKeepBuffersAndWhatAnyNameKeepsInFloat) {
  run([](Rank&) {
    for (const char* kept : {"encoder", "head"}) {
      const auto net = std::make_shared<TiedImpl>();
      const auto model =
          load_and_quantize_model(net, {.load_in_4bit = true,
                                        .torch_dtype = "fp16",
                                        .skip_modules = std::vector<std::string>{"last"},
                                        .keep_in_fp32_modules = std::vector<std::string>{kept}});
      EXPECT_EQ(net->encoder.scalar_type(), at::kFloat) << kept;
      EXPECT_EQ(net->named_parameters()["other"].scalar_type(), at::kHalf);
      EXPECT_EQ(net->inv_freq.scalar_type(), at::kFloat);
      EXPECT_TRUE(torch::equal(net->inv_freq.cpu(), torch::full({4}, 0.1)));
    }
  });
}

// A model that is evaluated has codes on the host and in files.
TEST(Saving, OfStateTakesCodesFromWhereTheyAre) {
  run([](Rank&) {
    const torch::NoGradGuard no_grad;
    const BnbQuantizationConfig config = {.load_in_8bit = true, .torch_dtype = "bf16"};
    Accelerator accelerator;
    Tensor expected;
    {
      auto model = load_and_quantize_model(empty_gpt(), config,
                                           {.weights_location = kCheckpoint,
                                            .device_map = map_of({"0", "cpu", "disk"}),
                                            .offload_folder = kFolder});
      auto prepared = accelerator.prepare_model(model, {.evaluation_mode = true});
      expected = prepared(text().to(sim(0)));
      accelerator.save_state("/sim/state");
      accelerator.load_state("/sim/state");
      EXPECT_TRUE(at::equal(prepared(text().to(sim(0))), expected));
      accelerator.free_memory();
    }
    // Elsewhere, another model gets the codes.
    torch::manual_seed(12);
    lm::Lm other(lm_config(lm::Blocks::kGpt, /*tied=*/false));
    other->eval();
    auto model = load_and_quantize_model(other, config);
    auto prepared = accelerator.prepare_model(model, {.evaluation_mode = true});
    EXPECT_FALSE(at::equal(prepared(text().to(sim(0))), expected));
    accelerator.load_state("/sim/state");
    EXPECT_TRUE(at::equal(prepared(text().to(sim(0))), expected));
  });
}

// ---- What is not quantised.

TEST(Modules, ThatAreSkippedKeepTheirBits) {
  run([](Rank&) {
    const torch::NoGradGuard no_grad;
    const lm::Lm plain = gpt();
    auto original = plain->named_parameters();
    for (const bool in_8bit : {false, true}) {
      auto model = load_and_quantize_model(
          empty_gpt(),
          {.load_in_8bit = in_8bit,
           .load_in_4bit = !in_8bit,
           .bnb_4bit_compute_dtype = "fp16",
           .skip_modules = std::vector<std::string>{"blocks.0", "head"},
           .keep_in_fp32_modules = std::vector<std::string>{"blocks.2", "norm"}},
          {.weights_location = kCheckpoint});
      for (const auto& item : model->named_parameters()) {
        const std::string& name = item.key();
        const bool in_fp32 = name.starts_with("blocks.2.") || name.find("norm.") == 0;
        const bool is_quantized = item.value().dim() == 2 &&
                                  (name.starts_with("blocks.1.") || name.starts_with("blocks.3."));
        EXPECT_EQ(quantized_bits(item.value()).has_value(), is_quantized) << name;
        if (is_quantized) continue;
        const at::ScalarType dtype = in_fp32 ? at::kFloat : at::kHalf;
        EXPECT_EQ(item.value().scalar_type(), dtype) << name;
        EXPECT_TRUE(at::equal(item.value().cpu(), original[name].to(dtype))) << name;
      }
      EXPECT_EQ(is_loaded_in_8bit(*model), in_8bit);
      EXPECT_EQ(is_loaded_in_4bit(*model), !in_8bit);
      EXPECT_TRUE(is_quantized(*model));
      EXPECT_EQ(has_4bit_bnb_layers(*model), !in_8bit);
    }
    EXPECT_FALSE(is_quantized(*plain));
  });
}

// In 4 bits, modules that the map offloads stay in torch_dtype.
TEST(Modules, InFilesAreNotQuantisedInFourBits) {
  run([](Rank&) {
    const torch::NoGradGuard no_grad;
    const DeviceMap map = map_of({"0", "cpu", "disk"});
    auto model = load_and_quantize_model(
        empty_gpt(), {.load_in_4bit = true},
        {.weights_location = kCheckpoint, .device_map = map, .offload_folder = kFolder});
    for (const auto& item : model->named_parameters()) {
      const bool is_layer = item.value().dim() == 2 && item.key().starts_with("blocks.");
      const bool is_here = map.find(item.key())->is_accelerator();
      EXPECT_EQ(quantized_bits(item.value()).has_value(), is_layer && is_here) << item.key();
    }
    EXPECT_EQ(model(text().to(sim(0))).device(), sim(0));
  });
}

TEST(Inference, NeedsNoAutograd) {
  run([](Rank&) {
    for (const bool in_8bit : {false, true}) {
      const BnbQuantizationConfig config = {.load_in_8bit = in_8bit, .load_in_4bit = !in_8bit};
      auto model = load_and_quantize_model(empty_gpt(), config, {.weights_location = kCheckpoint});
      const Tensor expected = model(text().to(sim(0))).detach();
      const c10::InferenceMode inference;
      EXPECT_TRUE(at::equal(model(text().to(sim(0))), expected));
      auto other = load_and_quantize_model(empty_gpt(), config, {.weights_location = kCheckpoint});
      EXPECT_TRUE(at::equal(other(text().to(sim(0))), expected));
      auto moved = load_and_quantize_model(gpt(), config);
      EXPECT_TRUE(at::equal(moved(text().to(sim(0))), expected));
    }
  });
}

TEST(Weights, AreQuantisedAgainWhenTheyChange) {
  std::vector<BnbQuantizationConfig> configs = four_bit_configs();
  configs.push_back({.load_in_8bit = true});
  run([&configs](Rank&) {
    for (BnbQuantizationConfig config : configs) {
      config.bnb_4bit_compute_dtype = "fp32";
      config.torch_dtype = "fp32";
      // Double quantisation rounds scales again.
      const double rounding = config.bnb_4bit_use_double_quant ? 0.05 : 1e-3;
      lm::Lm net = gpt();
      auto model = load_and_quantize_model(net, config);
      const torch::NoGradGuard no_grad;
      const Tensor weight = net->named_parameters()["blocks.1.mlp.up.weight"];
      const Tensor before = weight.cpu().clone();
      weight.mul_(2);
      EXPECT_LT((weight.cpu() - 2 * before).norm().item<double>(),
                rounding * before.norm().item<double>());
      EXPECT_TRUE(quantized_bits(weight).has_value());
      // Also by values of a state dict.
      NamedTensors state = module_state_dict(*gpt());
      load_module_state_dict(*net, state);
      EXPECT_TRUE(
          at::allclose(weight.cpu(), before, rounding, 1e-3 * before.abs().max().item<double>()));
      weight.fill_(NAN);
      EXPECT_THAT(error_of([&] { (void)weight.sum(); }), HasSubstr("which cannot be quantised"));
      EXPECT_TRUE(
          at::allclose(weight.cpu(), before, rounding, 1e-3 * before.abs().max().item<double>()));
    }
  });
}

// The last layer that is looked at cannot be: none is.
TEST(Weights, AreQuantisedAllOrNone) {
  run([](Rank&) {
    for (const bool in_8bit : {false, true}) {
      const BnbQuantizationConfig config = {.load_in_8bit = in_8bit,
                                            .load_in_4bit = !in_8bit,
                                            .bnb_4bit_compute_dtype = "fp16",
                                            .torch_dtype = "fp16"};
      // Infinite, not a number, and infinite as a number of 16 bits.
      for (const double bad : {HUGE_VAL, std::nan(""), 1e30}) {
        lm::Lm net = gpt();
        {
          const torch::NoGradGuard no_grad;
          net->named_parameters()["blocks.3.mlp.up.weight"][1][2] = bad;
        }
        const lm::Lm plain = gpt();
        const auto expected = plain->named_parameters();
        EXPECT_THAT(error_of([&] { (void)load_and_quantize_model(net, config); }),
                    AllOf(HasSubstr("blocks.3.mlp.up.weight"), HasSubstr("quantise")));
        for (const auto& item : net->named_parameters()) {
          EXPECT_FALSE(quantized_bits(item.value())) << item.key();
          EXPECT_TRUE(item.value().requires_grad()) << item.key();
          EXPECT_EQ(item.value().scalar_type(), at::kFloat) << item.key();
          if (item.key() == "blocks.3.mlp.up.weight") continue;
          EXPECT_TRUE(at::equal(item.value(), expected[item.key()])) << item.key();
        }
      }
    }
  });
}

// A weight that an embedding shares is the embedding's.
TEST(Weights, ThatAreSharedWithAKeptModuleStay) {
  run([](Rank& rank) {
    const torch::NoGradGuard no_grad;
    torch::manual_seed(11);
    lm::Lm net(lm_config(lm::Blocks::kGpt, /*tied=*/true));
    save_model(rank.runtime().files(), module_state_dict(*net), "/sim/tied");
    auto model = load_and_quantize_model(
        net, {.load_in_4bit = true, .skip_modules = std::vector<std::string>()});
    EXPECT_FALSE(quantized_bits(net->named_parameters()["tokens.weight"]));
    EXPECT_TRUE(quantized_bits(net->named_parameters()["blocks.0.mlp.up.weight"]));
  });
}

// One layer under two names, whose weight a file has once.
struct TwinsImpl : torch::nn::Module {
  TwinsImpl() {
    first = register_module("first", torch::nn::Linear(64, 64));
    second = register_module("second", first);
  }
  Tensor forward(const Tensor& x) { return second(first(x).tanh()); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

TEST(Weights, OfTwinsAreLoadedOnce) {
  run([](Rank& rank) {
    const torch::NoGradGuard no_grad;
    BnbQuantizationConfig config = {.load_in_4bit = true,
                                    .bnb_4bit_quant_type = "nf4",
                                    .bnb_4bit_use_double_quant = true,
                                    .skip_modules = std::vector<std::string>()};
    Tensor expected;
    const Tensor x = torch::ones({2, 64}, torch::kHalf).to(sim(0));
    {
      torch::manual_seed(9);
      auto model = load_and_quantize_model(std::make_shared<TwinsImpl>(), config);
      expected = model(x);
      save_model(rank.runtime().files(), get_state_dict_offloaded_model(*model), "/sim/twins");
    }
    const auto empty = [] {
      const EmptyInit scope = init_empty_weights();
      return std::make_shared<TwinsImpl>();
    }();
    auto model = load_and_quantize_model(empty, config, {.weights_location = "/sim/twins"});
    EXPECT_TRUE(at::equal(model(x), expected));
  });
}

// What each field is set to, and that outputs are others then.
TEST(Configuration, EachFieldChangesTheOutputs) {
  run([](Rank&) {
    const torch::NoGradGuard no_grad;
    const auto output = [](const BnbQuantizationConfig& config) {
      auto model = load_and_quantize_model(empty_gpt(), config, {.weights_location = kCheckpoint});
      return model(text().to(sim(0))).to(at::kFloat).cpu();
    };
    using Change = std::function<void(BnbQuantizationConfig&)>;
    const auto expect_changes = [&](const BnbQuantizationConfig& base,
                                    const std::vector<std::pair<std::string, Change>>& changes) {
      const Tensor expected = output(base);
      EXPECT_TRUE(at::equal(output(base), expected));
      for (const auto& [name, change] : changes) {
        BnbQuantizationConfig config = base;
        change(config);
        EXPECT_FALSE(at::equal(output(config), expected)) << name;
      }
    };
    const std::vector<std::pair<std::string, Change>> both = {
        {"torch_dtype", [](auto& config) { config.torch_dtype = "fp16"; }},
        {"skip_modules", [](auto& config) { config.skip_modules = {{"blocks.1"}}; }},
        {"keep_in_fp32_modules",
         [](auto& config) { config.keep_in_fp32_modules = {{"blocks.1"}}; }}};
    std::vector<std::pair<std::string, Change>> in_8bit = both, in_4bit = both;
    in_8bit.emplace_back("llm_int8_threshold",
                         [](auto& config) { config.llm_int8_threshold = 0.5; });
    in_8bit.emplace_back("load_in_4bit", [](auto& config) {
      config.load_in_8bit = false;
      config.load_in_4bit = true;
    });
    in_4bit.emplace_back("bnb_4bit_quant_type",
                         [](auto& config) { config.bnb_4bit_quant_type = "nf4"; });
    in_4bit.emplace_back("bnb_4bit_use_double_quant",
                         [](auto& config) { config.bnb_4bit_use_double_quant = true; });
    in_4bit.emplace_back("bnb_4bit_compute_dtype",
                         [](auto& config) { config.bnb_4bit_compute_dtype = "bf16"; });
    expect_changes({.load_in_8bit = true, .torch_dtype = "fp32"}, in_8bit);
    expect_changes({.load_in_4bit = true, .torch_dtype = "fp32"}, in_4bit);
  });
}

TEST(Errors, LeaveAModelThatCanBeLoaded) {
  run([](Rank& rank) {
    NamedTensors broken = module_state_dict(*gpt());
    for (auto& [name, tensor] : broken) {
      if (name == "blocks.2.mlp.up.weight") tensor.view(-1)[5] = INFINITY;
    }
    save_model(rank.runtime().files(), broken, "/sim/broken");
    lm::Lm net = empty_gpt();
    EXPECT_THAT(error_of([&] {
                  (void)load_and_quantize_model(net, {.load_in_8bit = true},
                                                {.weights_location = "/sim/broken"});
                }),
                HasSubstr("infinite or NaN"));
    EXPECT_FALSE(is_quantized(*net));
    auto model =
        load_and_quantize_model(net, {.load_in_4bit = true}, {.weights_location = kCheckpoint});
    EXPECT_TRUE(has_4bit_bnb_layers(*net));
    EXPECT_THAT(error_of([&] { (void)load_and_quantize_model(net, {.load_in_4bit = true}); }),
                HasSubstr("dispatched already"));
    replace_with_bnb_layers(*net, resolve({.load_in_4bit = true}), {"head"});
    EXPECT_THAT(error_of([&] { replace_with_bnb_layers(*net, resolve({.load_in_8bit = true})); }),
                HasSubstr("quantised already, in another way"));
    EXPECT_THAT(error_of([&] { replace_with_bnb_layers(*net, {.load_in_4bit = true}); }),
                HasSubstr("resolve(config)"));
  });
}

}  // namespace
}  // namespace accelerate
