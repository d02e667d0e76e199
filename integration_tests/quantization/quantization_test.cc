// Models with quantised weights: what they compute, on any devices, what they hold in memory, how
// they are saved, and what may be trained beside them.
// One shape of the cluster each: placements name its devices.
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
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
#include "accelerate/big_model/module_tensors.h"
#include "accelerate/checkpoint/formats/offload_index.h"
#include "accelerate/checkpoint/objects/module_state_dict.h"
#include "accelerate/examples/lm/training.h"
#include "accelerate/quantization/four_bit.h"
#include "accelerate/quantization/int8.h"
#include "accelerate/quantization/models/load_and_quantize.h"
#include "accelerate/quantization/models/quantized_layers.h"
#include "accelerate/quantization/models/quantized_weight.h"
#include "accelerate/report/availability.h"
#include "integration_tests/dispatch/models.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using simulator::SimDisk;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kCheckpoint[] = "/sim/checkpoint";

lm::Lm gpt() {
  torch::manual_seed(11);
  lm::Lm net(lm_config(lm::Blocks::kGpt, /*tied=*/false));
  net->eval();
  return net;
}

lm::Lm empty_gpt() {
  const EmptyInit empty = init_empty_weights();
  lm::Lm net(lm_config(lm::Blocks::kGpt, /*tied=*/false));
  net->eval();
  return net;
}

Tensor text() { return tokens_of({2, 9}, 41); }

DeviceMap map_of(const std::vector<std::string>& placements) {
  const Case each = lm_case("", lm::Blocks::kGpt);
  return placements.size() == 1 ? whole(placements[0]) : cut(each.parts, placements);
}

void save_checkpoint(FileSystem& files) {
  save_model(files, module_state_dict(*gpt()), kCheckpoint);
}

// A rank with two devices and a disk that has the model.
void run(const std::function<void(Rank&)>& body, const std::string& shape = "1x1:h100,devices=2") {
  Cluster cluster(shape, {.disk = std::make_shared<SimDisk>()});
  cluster.run_on_every_rank([&](Rank& rank) {
    save_checkpoint(rank.runtime().files());
    body(rank);
  });
}

std::vector<BnbQuantizationConfig> four_bit_configs() {
  std::vector<BnbQuantizationConfig> configs;
  for (const char* type : {"fp4", "nf4"}) {
    for (const bool is_double : {false, true}) {
      configs.push_back({.load_in_4bit = true,
                         .bnb_4bit_quant_type = type,
                         .bnb_4bit_use_double_quant = is_double,
                         .bnb_4bit_compute_dtype = "bf16"});
    }
  }
  return configs;
}

std::string name_of(const BnbQuantizationConfig& config) {
  return config.load_in_8bit ? "int8"
                             : absl::StrCat(config.bnb_4bit_quant_type,
                                            config.bnb_4bit_use_double_quant ? " twice" : "");
}

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
    EXPECT_THAT(error({.load_in_4bit = true}, "/sim/nf4"),
                HasSubstr("blocks.0.attention.qkv.weight"));
    EXPECT_THAT(error({.load_in_8bit = true}, "/sim/nf4"),
                HasSubstr("blocks.0.attention.qkv.weight"));
    EXPECT_THAT(
        error(
            {.load_in_4bit = true, .bnb_4bit_quant_type = "nf4", .bnb_4bit_use_double_quant = true},
            "/sim/nf4"),
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
  });
}

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

// ---- Training beside quantised weights.

// A quantised layer with a correction of low rank.
struct AdaptedImpl : torch::nn::Module {
  AdaptedImpl() {
    base = register_module("base", torch::nn::Linear(16, 16));
    middle = register_module("middle", torch::nn::Linear(16, 16));
    head = register_module("head", torch::nn::Linear(16, 4));
    down = register_parameter("down", torch::randn({2, 16}) / 4);
    up = register_parameter("up", torch::zeros({16, 2}));
  }
  Tensor forward(const Tensor& x) {
    const Tensor h = base(x) + x.matmul(down.t()).matmul(up.t());
    return head(middle(h.relu()));
  }
  torch::nn::Linear base{nullptr}, middle{nullptr}, head{nullptr};
  Tensor down, up;
};
TORCH_MODULE(Adapted);

TEST(Adapters, AreTrainedBesideFrozenCodes) {
  for (const bool in_8bit : {false, true}) {
    for (const char* shape : {"1x1:h100", "1x2:h100"}) {
      Cluster cluster(shape, {.disk = std::make_shared<SimDisk>()});
      cluster.run_on_every_rank([&](Rank& rank) {
        torch::manual_seed(3);
        Adapted net;
        net->head->weight.set_requires_grad(false);
        net->head->bias.set_requires_grad(false);
        auto model = load_and_quantize_model(net, {.load_in_8bit = in_8bit,
                                                   .load_in_4bit = !in_8bit,
                                                   .bnb_4bit_compute_dtype = "fp32",
                                                   .torch_dtype = "fp32"});
        const NamedTensors before = get_state_dict_offloaded_model(*net);
        std::vector<Tensor> trained;
        for (const Tensor& each : model.parameters()) {
          if (each.requires_grad()) trained.push_back(each);
        }
        ASSERT_EQ(trained.size(), 2);
        Accelerator accelerator;
        auto adam = std::make_shared<torch::optim::AdamW>(trained, 0.02);
        auto [prepared, optimizer] = accelerator.prepare(model, adam);
        torch::manual_seed(40 + rank.index());
        const Tensor x = torch::randn({8, 16}, accelerator.device());
        const Tensor y = torch::randn({8, 4}, accelerator.device());
        double first = 0, last = 0;
        for (int step = 0; step < 30; ++step) {
          const Tensor loss = torch::mse_loss(prepared(x), y);
          (step == 0 ? first : last) = accelerator.reduce(loss.detach()).item<double>();
          accelerator.backward(loss);
          optimizer.step();
          optimizer.zero_grad();
        }
        EXPECT_LT(last, 0.9 * first);
        const NamedTensors after = get_state_dict_offloaded_model(*net);
        for (size_t i = 0; i < before.size(); ++i) {
          const bool is_adapter = before[i].first == "down" || before[i].first == "up";
          EXPECT_EQ(at::equal(before[i].second, after[i].second), !is_adapter) << before[i].first;
        }
      });
    }
  }
}

// The gradient of the input is that of the values.
TEST(Gradients, PassThroughQuantisedLayers) {
  run([](Rank&) {
    for (const bool in_8bit : {false, true}) {
      torch::manual_seed(3);
      Adapted net;
      auto model = load_and_quantize_model(net, {.load_in_8bit = in_8bit,
                                                 .load_in_4bit = !in_8bit,
                                                 .bnb_4bit_compute_dtype = "fp32",
                                                 .torch_dtype = "fp32"});
      Adapted plain;
      {
        const torch::NoGradGuard no_grad;
        for (const auto& item : plain->named_parameters()) {
          item.value().copy_(net->named_parameters()[item.key()]);
        }
      }
      plain->to(sim(0));
      // LibTorch's layers add a bias in place where the input has other dims than two.
      for (const std::vector<int64_t>& sizes :
           {std::vector<int64_t>{5, 16}, std::vector<int64_t>{2, 5, 16}}) {
        const Tensor x = torch::randn(sizes).to(sim(0));
        const Tensor own = x.clone().requires_grad_(), other = x.clone().requires_grad_();
        model(own).square().sum().backward();
        plain->forward(other).square().sum().backward();
        EXPECT_TRUE(at::allclose(own.grad().cpu(), other.grad().cpu(), in_8bit ? 0.05 : 1e-5,
                                 in_8bit ? 0.05 : 1e-5));
      }
      EXPECT_FALSE(net->base->weight.grad().defined());
      EXPECT_FALSE(net->base->weight.requires_grad());
    }
  });
}

// ---- A trained language model.

double loss_of(const std::function<Tensor(const Tensor&)>& forward, const Tensor& sequences) {
  double sum = 0;
  const Tensor inputs = sequences.narrow(1, 0, sequences.size(1) - 1).contiguous();
  const Tensor targets = sequences.narrow(1, 1, sequences.size(1) - 1).contiguous();
  const Tensor logits = forward(inputs.to(sim(0))).to(at::kCPU).to(at::kFloat);
  sum = torch::cross_entropy_loss(logits.flatten(0, 1), targets.flatten()).item<double>();
  return sum;
}

TEST(Perplexity, IsNearThatOfBf16) {
  const auto disk = std::make_shared<SimDisk>();
  const lm::Config shape = lm::model_config("tiny", {.blocks = lm::Blocks::kLlama,
                                                     .layers = 3,
                                                     .hidden = 128,
                                                     .heads = 4,
                                                     .sequence_length = 64});
  {
    Cluster cluster("1x1:h100", {.disk = disk});
    cluster.run_on_every_rank([&](Rank&) {
      lm::train({.data = "accelerate/examples/lm/kjv.txt",
                 .config = shape,
                 .batch_size = 8,
                 .learning_rate = 3e-3,
                 .max_steps = 150,
                 .log_every = 0,
                 .evaluation_sequences = 0,
                 .output_dir = "/sim/run",
                 .checkpointing_steps = 1000});
    });
  }
  std::string bytes;
  {
    std::ifstream file("accelerate/examples/lm/kjv.txt", std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(file), {});
  }
  constexpr int64_t kSequences = 96;
  const Tensor all =
      torch::from_blob(bytes.data(), {static_cast<int64_t>(bytes.size())}, torch::kByte)
          .to(torch::kLong);
  const Tensor sequences =
      all.narrow(0, all.size(0) - kSequences * 64, kSequences * 64).view({kSequences, 64});
  std::map<std::string, double> perplexity;
  std::map<std::string, int64_t> held, peak;
  const auto measure = [&](const std::string& name, auto&& load) {
    Cluster cluster("1x1:h100", {.disk = disk});
    cluster.run_on_every_rank([&](Rank& rank) {
      const torch::NoGradGuard no_grad;
      const lm::Lm net = [&] {
        const EmptyInit scope = init_empty_weights();
        return lm::Lm(shape);
      }();
      auto model = load(net, rank.runtime().files());
      const DeviceMemoryUse loaded = *rank.runtime().device_memory();
      held[name] = loaded.in_use;
      Tensor prompt = sequences.narrow(0, 0, 1).narrow(1, 0, 16).to(sim(0));
      for (int token = 0; token < 8; ++token) {
        prompt = torch::cat({prompt, model(prompt).select(1, -1).argmax(-1, true)}, 1);
      }
      peak[name] = rank.runtime().device_memory()->peak;
      perplexity[name] = std::exp(loss_of([&](const Tensor& x) { return model(x); }, sequences));
    });
  };
  measure("bf16", [](const lm::Lm& net, FileSystem& files) {
    return load_checkpoint_and_dispatch(files, net, "/sim/run/model",
                                        {.device_map = whole("0"), .dtype = at::kBFloat16});
  });
  for (const BnbQuantizationConfig& config :
       {BnbQuantizationConfig{.load_in_8bit = true, .torch_dtype = "bf16"},
        BnbQuantizationConfig{.load_in_4bit = true,
                              .bnb_4bit_quant_type = "nf4",
                              .bnb_4bit_use_double_quant = true,
                              .bnb_4bit_compute_dtype = "bf16"}}) {
    measure(name_of(config), [&](const lm::Lm& net, FileSystem& /*files*/) {
      return load_and_quantize_model(net, config, {.weights_location = "/sim/run/model"});
    });
  }
  for (const auto& [name, value] : perplexity) {
    std::printf("%-10s perplexity %.4f (%+.3f %%), held %8.1f KiB, peak %8.1f KiB\n", name.c_str(),
                value, 100 * (value / perplexity["bf16"] - 1),
                static_cast<double>(held[name]) / 1024, static_cast<double>(peak[name]) / 1024);
  }
  EXPECT_LT(perplexity["bf16"], 20);
  EXPECT_LT(std::abs(perplexity["nf4 twice"] / perplexity["bf16"] - 1), 0.01);
  EXPECT_LT(std::abs(perplexity["int8"] / perplexity["bf16"] - 1), 0.003);
}

}  // namespace
}  // namespace accelerate
