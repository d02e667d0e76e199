// A Llama with 7 billion parameters and a sequence of 131,072 tokens, which 8 devices hold together
// and none of them alone. One shape of the cluster each: the memory is that of these devices.
#include <cstdint>
#include <exception>
#include <memory>
#include <string>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/config/fsdp_plugin.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/examples/lm/config.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/operators/default_device.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterError;
using simulator::ClusterOptions;
using simulator::Rank;

constexpr int64_t kTokens = 131'072;
constexpr double kGiB = 1024.0 * 1024 * 1024;

// The first rank's peak in one forward and backward pass of 8 ranks that divide the parameters.
double peak_of_a_pass(const ParallelismOptions& sizes) {
  ClusterOptions options;
  options.numerics = simulator::Numerics::kShapes;
  options.unknown_value = [](const std::string& /*operation*/) { return 0.0; };
  Cluster cluster("1x8:h100", options);
  cluster.run_on_every_rank([&](Rank& rank) {
    FullyShardedDataParallelPlugin plugin;
    plugin.fsdp_version = 2;
    plugin.auto_wrap_policy = AutoWrapPolicy::kTransformerBasedWrap;
    Accelerator accelerator({.mixed_precision = PrecisionType::kBf16,
                             .parallelism_config = ParallelismConfig(sizes),
                             .fsdp_plugin = plugin});
    const lm::Config config =
        lm::model_config("7b", {.blocks = lm::Blocks::kLlama, .sequence_length = kTokens});
    lm::Lm net = [&] {
      const DefaultDeviceScope scope(accelerator.device());
      return lm::Lm(config,
                    lm::LmOptions{.activation_checkpointing = true, .shares_key_heads = true});
    }();
    const std::shared_ptr<torch::optim::Optimizer> sgd =
        std::make_shared<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.1));
    auto [model, optimizer] = accelerator.prepare(net.ptr(), sgd);
    const auto integers = at::TensorOptions(accelerator.device()).dtype(at::kLong);
    const at::Tensor tokens = at::ones({1, kTokens}, integers), labels = tokens.clone();
    const at::Tensor positions = at::arange(kTokens, integers);
    const auto scope = accelerator.maybe_context_parallel({tokens, labels, positions}, {1, 1, 0});
    const at::Tensor logits = model(tokens, positions).flatten(0, 1);
    accelerator.backward(torch::cross_entropy_loss(logits, labels.flatten()));
    rank.report("peak", static_cast<double>(rank.device()->memory().peak()));
  });
  return cluster.reports("peak").front().item<double>();
}

TEST(LongSequence, FitsEightRanksAlongCp) {
  for (const char* strategy : {"alltoall", "allgather"}) {
    const double peak = peak_of_a_pass(
        {.cp_size = 8, .cp_handler = TorchContextParallelConfig{.cp_comm_strategy = strategy}});
    EXPECT_LT(peak, 80 * kGiB) << strategy;
  }
}

TEST(LongSequence, DoesNotFitOneRank) {
  try {
    peak_of_a_pass({.dp_shard_size = 8});
    FAIL() << "131,072 tokens went into one device";
  } catch (const ClusterError& error) {
    EXPECT_THROW(std::rethrow_exception(error.failures()[0].exception), c10::OutOfMemoryError);
  }
}

}  // namespace
}  // namespace accelerate
