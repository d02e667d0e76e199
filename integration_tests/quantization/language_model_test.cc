// A trained language model in 8 and 4 bits: its perplexity, and the memory of generation.
// One shape of the cluster.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/examples/lm/training.h"
#include "integration_tests/quantization/quantized_models.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using simulator::SimDisk;

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

// The peak of loading and generating: the share of what bf16 takes, what is not quantised, and for
// the layer that is computed its values, twice in float32 and once in the layer's dtype.
TEST(Memory, OfGenerationIsHalfAndAQuarterOfBf16) {
  const lm::Config shape = lm::model_config("tiny", {.blocks = lm::Blocks::kLlama,
                                                     .layers = 12,
                                                     .hidden = 256,
                                                     .heads = 4,
                                                     .sequence_length = 64});
  const auto disk = std::make_shared<SimDisk>();
  int64_t others = 0, largest = 0;  // bytes of what is not quantised, elements of a weight
  {
    torch::manual_seed(2);
    const lm::Lm net(shape);
    save_model(*disk, module_state_dict(*net), kCheckpoint);
    for (const auto& item : net->named_parameters()) {
      const bool is_layer = item.key().starts_with("blocks.") && item.value().dim() == 2;
      (is_layer ? largest : others) =
          is_layer ? std::max(largest, item.value().numel()) : others + 2 * item.value().numel();
    }
  }
  const auto peak = [&](const std::optional<BnbQuantizationConfig>& config) {
    int64_t result = 0;
    Cluster cluster("1x1:h100,efficiency=ideal", {.disk = disk});
    cluster.run_on_every_rank([&](Rank& rank) {
      const torch::NoGradGuard no_grad;
      const lm::Lm net = [&] {
        const EmptyInit scope = init_empty_weights();
        return lm::Lm(shape);
      }();
      auto model =
          config ? load_and_quantize_model(net, *config, {.weights_location = kCheckpoint})
                 : load_checkpoint_and_dispatch(rank.runtime().files(), net, kCheckpoint,
                                                {.device_map = whole("0"), .dtype = at::kBFloat16});
      Tensor prompt = tokens_of({1, 8}, 256).to(sim(0));
      for (int token = 0; token < 3; ++token) {
        prompt = torch::cat({prompt, model(prompt).select(1, -1).argmax(-1, true)}, 1);
      }
      result = rank.runtime().device_memory()->peak;
    });
    return result;
  };
  const int64_t bf16 = peak(std::nullopt);
  const int64_t in_8bit = peak(BnbQuantizationConfig{.load_in_8bit = true, .torch_dtype = "bf16"});
  const int64_t in_4bit = peak(BnbQuantizationConfig{.load_in_4bit = true,
                                                     .bnb_4bit_quant_type = "nf4",
                                                     .bnb_4bit_use_double_quant = true,
                                                     .bnb_4bit_compute_dtype = "bf16"});
  std::printf("peak of generation: bf16 %.2f, int8 %.2f, nf4 %.2f MiB; beside codes: %.2f MiB\n",
              static_cast<double>(bf16) / (1 << 20), static_cast<double>(in_8bit) / (1 << 20),
              static_cast<double>(in_4bit) / (1 << 20),
              static_cast<double>(others + 10 * largest) / (1 << 20));
  EXPECT_LT(in_8bit, bf16 / 2 + others + 10 * largest);
  EXPECT_LT(in_4bit, bf16 / 4 + others + 10 * largest);
}

}  // namespace
}  // namespace accelerate
