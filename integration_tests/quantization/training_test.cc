// What is trained beside quantised weights, on one rank and on ranks that divide the codes.
// One shape of the cluster each.
#include <cstdint>
#include <cstdio>
#include <functional>
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

// A module around the model, which is quantised by itself.
struct AroundImpl : torch::nn::Module {
  explicit AroundImpl(const std::shared_ptr<lm::LmImpl>& body)
      : body(register_module("body", body)),
        head(register_module("head", torch::nn::Linear(41, 3))) {}
  Tensor forward(const Tensor& x) { return head(body->forward(x).to(at::kFloat)); }
  std::shared_ptr<lm::LmImpl> body;
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Around);

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
          // The same of a module around it.
          accelerator.free_memory();
          EXPECT_EQ(error_of([&] { (void)accelerator.prepare(Around(model.module())); }), text_of);
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

// Integers are multiplied there, too.
TEST(Adapters, AreTrainedInAModuleAroundTheModel) {
  run([](Rank&) {
    auto model = load_and_quantize_model(empty_gpt(), {.load_in_8bit = true},
                                         {.weights_location = kCheckpoint});
    Tensor expected;
    {
      const torch::NoGradGuard no_grad;
      expected = model(text().to(sim(0))).to(at::kFloat);
    }
    for (const Tensor& each : model->parameters()) each.set_requires_grad(false);
    Around net(model.module());
    Accelerator accelerator;
    auto sgd = std::make_shared<torch::optim::SGD>(net->head->parameters(), 0.1);
    auto [prepared, optimizer] = accelerator.prepare(net, sgd);
    const Tensor output = prepared(text().to(sim(0)));
    EXPECT_TRUE(at::equal(output, net->head(expected)));
    const Tensor loss = output.square().mean();
    accelerator.backward(loss);
    optimizer.step();
    EXPECT_LT(prepared(text().to(sim(0))).square().mean().item<double>(), loss.item<double>());
  });
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

}  // namespace
}  // namespace accelerate
