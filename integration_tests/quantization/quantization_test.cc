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
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/checkpoint/objects/module_state_dict.h"
#include "accelerate/examples/lm/training.h"
#include "accelerate/quantization/four_bit.h"
#include "accelerate/quantization/models/load_and_quantize.h"
#include "accelerate/quantization/models/quantized_weight.h"
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

// By default a rank with two devices, and always a disk that has the model.
void run(const std::function<void(Rank&)>& body, const std::string& shape = "1x1:h100,devices=2") {
  const auto disk = std::make_shared<SimDisk>();
  save_model(*disk, module_state_dict(*gpt()), kCheckpoint);
  Cluster cluster(shape, {.disk = disk});
  cluster.run_on_every_rank(body);
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

// What 12 steps of all ranks together on the same 16 rows leave, by name.
struct Trained {
  std::vector<double> losses;
  std::map<std::string, Tensor> state;
  int64_t held = 0;  // by the model on a rank's device, before the first step
};

Trained train_adapters(const std::string& shape, const BnbQuantizationConfig& config,
                       const std::function<AcceleratorOptions()>& options) {
  Trained result;
  Cluster cluster(shape, {.disk = std::make_shared<SimDisk>()});
  cluster.run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator(options());
    torch::manual_seed(3);
    Adapted net;
    for (const Tensor& each : net->head->parameters()) each.set_requires_grad(false);
    auto model = load_and_quantize_model(net, config);
    std::vector<Tensor> trained = {net->down, net->up};
    auto adam = std::make_shared<torch::optim::AdamW>(trained, 0.02);
    auto [prepared, optimizer] = accelerator.prepare(model, adam);
    const int64_t held = rank.runtime().device_memory()->in_use;
    torch::manual_seed(40);
    const int share = 16 / accelerator.num_processes();
    const int64_t first = static_cast<int64_t>(accelerator.process_index()) * share;
    const Tensor x = torch::randn({16, 16}).narrow(0, first, share).to(accelerator.device());
    const Tensor y = torch::randn({16, 4}).narrow(0, first, share).to(accelerator.device());
    std::vector<double> losses;
    for (int step = 0; step < 12; ++step) {
      const Tensor loss = torch::mse_loss(prepared(x), y);
      losses.push_back(accelerator.reduce(loss.detach(), Reduction::kMean).item<double>());
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
    }
    accelerator.save_state("/sim/state");
    const NamedTensors state = accelerator.get_state_dict(prepared);
    accelerator.load_state("/sim/state");
    const double again =
        accelerator.reduce(torch::mse_loss(prepared(x), y).detach(), Reduction::kMean)
            .item<double>();
    EXPECT_LT(again, losses.back());
    if (accelerator.is_main_process()) {
      result.losses = losses;
      result.state = {state.begin(), state.end()};
      result.held = held;
    }
  });
  return result;
}

void expect_alike(const Trained& some, const Trained& one, const std::string& what) {
  ASSERT_EQ(some.losses.size(), one.losses.size()) << what;
  for (size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(some.losses[i], one.losses[i], 1e-5 * one.losses[0]) << what << ", step " << i;
  }
  ASSERT_EQ(some.state.size(), one.state.size()) << what;
  for (const auto& [name, tensor] : one.state) {
    const Tensor other = some.state.at(name).cpu();
    if (name == "down" || name == "up") {
      EXPECT_TRUE(at::allclose(other, tensor.cpu(), 1e-4, 1e-5)) << what << ", " << name;
    } else {
      EXPECT_TRUE(at::equal(other, tensor.cpu())) << what << ", " << name;
    }
  }
}

TEST(Adapters, AreTrainedAlikeByRanksThatShareTheCodes) {
  for (const BnbQuantizationConfig& config :
       {BnbQuantizationConfig{.load_in_8bit = true, .torch_dtype = "fp32"},
        BnbQuantizationConfig{.load_in_4bit = true,
                              .bnb_4bit_quant_type = "nf4",
                              .bnb_4bit_use_double_quant = true,
                              .bnb_4bit_compute_dtype = "fp32"}}) {
    const Trained one = train_adapters("1x1:h100", config, [] { return AcceleratorOptions(); });
    EXPECT_LT(one.losses.back(), one.losses.front());
    const Trained two = train_adapters("1x2:h100", config, [] { return AcceleratorOptions(); });
    expect_alike(two, one, absl::StrCat(name_of(config), ", replicas"));
    for (const int version : {1, 2}) {
      const Trained shards = train_adapters("1x4:h100", config, [version] {
        return AcceleratorOptions{.fsdp_plugin = FullyShardedDataParallelPlugin{
                                      .fsdp_version = version, .use_orig_params = true}};
      });
      expect_alike(shards, one, absl::StrCat(name_of(config), ", FSDP ", version));
    }
    for (const int stage : {1, 2, 3}) {
      const Trained zero = train_adapters("1x4:h100", config, [stage] {
        return AcceleratorOptions{
            .deepspeed_plugin = DeepSpeedPlugin{
                .hf_ds_config = nlohmann::ordered_json{
                    {"train_micro_batch_size_per_gpu", 4},
                    {"zero_optimization",
                     {{"stage", stage}, {"stage3_gather_16bit_weights_on_model_save", true}}}}}};
      });
      expect_alike(zero, one, absl::StrCat(name_of(config), ", stage ", stage));
    }
  }
}

// Layers without biases.
struct TowerImpl : torch::nn::Module {
  TowerImpl() {
    for (int i = 0; i < 3; ++i) {
      layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(256, 256).bias(false)));
    }
    register_module("layers", layers);
    scale = register_parameter("scale", torch::ones({1}));
  }
  Tensor forward(Tensor x) {
    for (const auto& each : *layers) x = each->as<torch::nn::Linear>()->forward(x).tanh();
    return x * scale;
  }
  torch::nn::ModuleList layers;
  Tensor scale;
};
TORCH_MODULE(Tower);

// Bytes of weights in all gathers of two passes on four ranks, and what each rank's device holds.
std::pair<int64_t, int64_t> gathered_and_held(const std::optional<BnbQuantizationConfig>& config) {
  Cluster cluster("1x4:h100", {.record = true});
  int64_t held = 0;
  cluster.run_on_every_rank([&](Rank& rank) {
    AcceleratorOptions options{.fsdp_plugin = FullyShardedDataParallelPlugin{.fsdp_version = 2}};
    options.kwargs_handlers.emplace_back(ShardedDataParallelKwargs{.group_bytes = 1});
    Accelerator accelerator(options);
    torch::manual_seed(8);
    Tower net;
    net->to(torch::kBFloat16);
    for (const Tensor& each : net->layers->parameters()) each.set_requires_grad(false);
    std::optional<Dispatched<TowerImpl>> model;
    if (config) model = load_and_quantize_model(net, *config);
    auto prepared = accelerator.prepare(net);
    if (rank.index() == 0) held = rank.runtime().device_memory()->in_use;
    const torch::NoGradGuard no_grad;
    for (int pass = 0; pass < 2; ++pass) {
      prepared(torch::ones({2, 256}, torch::kBFloat16).to(accelerator.device()));
    }
  });
  int64_t gathered = 0;
  for (const simulator::TraceOperation& each : cluster.trace().operations) {
    // Without what ranks tell each other in prepare.
    if (each.bytes >= 256 * 256 / 8 &&
        absl::StrContains(cluster.trace().names[each.name], "all_gather")) {
      gathered += each.bytes;
    }
  }
  return {gathered, held};
}

TEST(Shards, AreGatheredAsCodes) {
  const auto [plain, plain_held] = gathered_and_held(std::nullopt);
  const auto [in_8bit, held_8bit] = gathered_and_held(BnbQuantizationConfig{
      .load_in_8bit = true, .torch_dtype = "bf16", .skip_modules = std::vector<std::string>()});
  const auto [in_4bit, held_4bit] =
      gathered_and_held(BnbQuantizationConfig{.load_in_4bit = true,
                                              .bnb_4bit_compute_dtype = "bf16",
                                              .skip_modules = std::vector<std::string>()});
  std::printf("gathered: bf16 %lld, int8 %lld, fp4 %lld bytes; held by a rank: %lld, %lld, %lld\n",
              static_cast<long long>(plain), static_cast<long long>(in_8bit),
              static_cast<long long>(in_4bit), static_cast<long long>(plain_held),
              static_cast<long long>(held_8bit), static_cast<long long>(held_4bit));
  EXPECT_GT(plain, 0);
  EXPECT_EQ(2 * in_8bit, plain);
  EXPECT_EQ(4 * in_4bit, plain);
  EXPECT_LT(held_8bit, plain_held);
  EXPECT_LT(held_4bit, held_8bit);
}

TEST(Adapters, AreTrainedWhereTheModelIs) {
  const auto error_on = [](const std::string& shape, const std::vector<std::string>& placements,
                           bool in_8bit = true) {
    std::string error;
    run(
        [&](Rank& rank) {
          Accelerator accelerator;
          // A rank's devices are numbered behind those of the ranks before it.
          std::vector<std::string> own = placements;
          for (std::string& each : own) {
            if (each == "0" || each == "1") each = absl::StrCat(2 * rank.index() + (each == "1"));
          }
          auto model = load_and_quantize_model(
              empty_gpt(), {.load_in_8bit = in_8bit, .load_in_4bit = !in_8bit},
              {.weights_location = kCheckpoint,
               .device_map = map_of(own),
               .offload_folder = absl::StrCat("/sim/of rank ", rank.index())});
          const std::string text_of = error_of([&] { (void)accelerator.prepare(model); });
          if (rank.index() == 0) error = text_of;
          // It may be evaluated.
          if (shape.starts_with("1x1")) {
            auto prepared = accelerator.prepare_model(model, {.evaluation_mode = true});
            const torch::NoGradGuard no_grad;
            EXPECT_EQ(prepared(text().to(model.main_device())).size(2), 41);
          }
        },
        shape);
    return error;
  };
  EXPECT_EQ(error_on("1x1:h100,devices=2", {"0"}), "");
  EXPECT_EQ(error_on("1x1:h100,devices=2", {"0", "1"}), "");
  EXPECT_THAT(error_on("1x1:h100,devices=2", {"1"}),
              AllOf(HasSubstr("different device"), HasSubstr("rank 0")));
  EXPECT_THAT(error_on("1x1:h100,devices=2", {"0", "cpu"}),
              AllOf(HasSubstr("CPU or disk offload"), HasSubstr("\"cpu\"")));
  EXPECT_THAT(error_on("1x1:h100,devices=2", {"0", "disk"}), HasSubstr("\"disk\""));
  EXPECT_THAT(error_on("1x2:h100,devices=2", {"0", "1"}),
              HasSubstr("multiple devices in any distributed mode"));
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

// Blocks that are computed again multiply with the codes again, and autocast changes the dtypes of
// what is not quantised alone.
TEST(Gradients, AreThoseOfRecomputedBlocks) {
  for (const bool in_8bit : {false, true}) {
    const auto gradients = [&](bool recomputes, PrecisionType precision) {
      Tensor gradient;
      run([&](Rank&) {
        Accelerator accelerator({.mixed_precision = precision});
        torch::manual_seed(11);
        auto net =
            std::make_shared<lm::LmImpl>(lm_config(lm::Blocks::kGpt, /*tied=*/false), recomputes);
        auto model = load_and_quantize_model(net, {.load_in_8bit = in_8bit,
                                                   .load_in_4bit = !in_8bit,
                                                   .bnb_4bit_compute_dtype = "fp32",
                                                   .torch_dtype = "fp32"});
        auto prepared = accelerator.prepare(model);
        const Tensor loss = prepared(text().to(sim(0))).square().mean();
        accelerator.backward(loss);
        gradient = net->named_parameters()["tokens.weight"].grad().to(at::kCPU);
      });
      return gradient;
    };
    const Tensor expected = gradients(false, PrecisionType::kNo);
    EXPECT_TRUE(at::equal(gradients(true, PrecisionType::kNo), expected));
    const Tensor in_bf16 = gradients(false, PrecisionType::kBf16);
    EXPECT_FALSE(at::equal(in_bf16, expected));
    EXPECT_TRUE(at::allclose(in_bf16, expected, 0.1, 0.02 * expected.abs().max().item<double>()));
    EXPECT_TRUE(at::equal(gradients(true, PrecisionType::kBf16), in_bf16));
  }
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
      // Views of such parameters do not say what they are of, so no product is seen in them.
      EXPECT_TRUE(at::allclose(other(text().to(sim(0))), expected, 0.05, in_8bit ? 0.01 : 0));
    }
  });
}

TEST(Weights, AreQuantisedAgainWhenTheyChange) {
  run([](Rank&) {
    for (const bool in_8bit : {false, true}) {
      lm::Lm net = gpt();
      auto model = load_and_quantize_model(
          net, {.load_in_8bit = in_8bit, .load_in_4bit = !in_8bit, .torch_dtype = "fp32"});
      const torch::NoGradGuard no_grad;
      const Tensor weight = net->named_parameters()["blocks.1.mlp.up.weight"];
      const Tensor before = weight.cpu().clone();
      weight.mul_(2);
      EXPECT_TRUE(at::allclose(weight.cpu(), 2 * before, 1e-3, 1e-6));
      EXPECT_TRUE(quantized_bits(weight).has_value());
      // Also by values of a state dict.
      NamedTensors state = module_state_dict(*gpt());
      load_module_state_dict(*net, state);
      EXPECT_TRUE(at::allclose(weight.cpu(), before, 1e-3, 1e-6));
      weight.fill_(NAN);
      EXPECT_THAT(error_of([&] { (void)weight.sum(); }), HasSubstr("which cannot be quantised"));
      EXPECT_TRUE(at::allclose(weight.cpu(), before, 1e-3, 1e-6));
    }
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
    EXPECT_THAT(error_of([&] { replace_with_bnb_layers(*net, resolve({.load_in_4bit = true})); }),
                HasSubstr("quantised already"));
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
