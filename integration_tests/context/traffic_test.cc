// What attention along cp sends: to the byte, with values and without.
#include <cstdint>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/examples/lm/config.h"
#include "accelerate/examples/lm/model.h"
#include "simulator/cluster/cluster.h"
#include "simulator/trace/trace.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterOptions;
using simulator::Numerics;
using simulator::Rank;

struct Passes {
  const char* strategy = "alltoall";
  bool backward = true;
  bool shares_key_heads = true;
  Numerics numerics = Numerics::kReal;
  int ranks = 2;
};

// What all ranks send in passes of a Llama of 4 layers with 4 sequences of 128 tokens, 4 heads of
// queries and 2 of keys, of 32 elements.
double sent(const Passes& passes, int count) {
  ClusterOptions options;
  options.record = true;
  options.numerics = passes.numerics;
  Cluster cluster("1x" + std::to_string(passes.ranks) + ":h100", options);
  cluster.run_on_every_rank([&](Rank&) {
    Accelerator accelerator(
        {.parallelism_config = ParallelismConfig(
             {.cp_size = passes.ranks,
              .cp_handler = TorchContextParallelConfig{.cp_comm_strategy = passes.strategy}})});
    const lm::Config config = lm::model_config("tiny", {.blocks = lm::Blocks::kLlama});
    lm::Lm made(config, lm::LmOptions{.shares_key_heads = passes.shares_key_heads});
    auto model = accelerator.prepare(made.ptr());
    for (int pass = 0; pass < count; ++pass) {
      const auto integers = at::TensorOptions(accelerator.device()).dtype(at::kLong);
      const at::Tensor tokens = at::ones({4, 128}, integers), places = at::arange(128, integers);
      const auto scope = accelerator.maybe_context_parallel({tokens, places}, {1, 0});
      const auto quiet = accelerator.no_sync(model);
      const at::AutoGradMode gradients(passes.backward);
      const at::Tensor logits = model(tokens, places);
      if (passes.backward) accelerator.backward(logits.mean());
    }
  });
  double bytes = 0;
  for (const simulator::Traffic& pair : cluster.trace().communication) bytes += pair.bytes;
  return bytes;
}

double bytes_a_layer(const Passes& passes) {
  constexpr int kLayers = 4;
  return (sent(passes, 2) - sent(passes, 1)) / kLayers / passes.ranks;
}

TEST(ContextTraffic, OfTheRingIsThatOfItsHops) {
  constexpr double kKeysAndValues = 2 * 4 * 2 * 64 * 32 * 4;  // bytes of one rank
  for (const Numerics numerics : {Numerics::kReal, Numerics::kShapes}) {
    EXPECT_EQ(bytes_a_layer({.backward = false, .numerics = numerics}), 131'072);
    // Keys and values once more, and their gradients one hop further.
    EXPECT_EQ(bytes_a_layer({.numerics = numerics}), 131'072 + 393'216);
  }
  static_assert(kKeysAndValues == 131'072);
  EXPECT_EQ(bytes_a_layer({.backward = false, .ranks = 4}), 3 * kKeysAndValues / 2);
  EXPECT_EQ(bytes_a_layer({.ranks = 4}), (3 + 3 + 4) * kKeysAndValues / 2);
}

// Keys are gathered again backward, so that none are kept.
TEST(ContextTraffic, OfGathersIsThatOfAllKeys) {
  EXPECT_EQ(bytes_a_layer({.strategy = "allgather", .backward = false}), 131'072);
  EXPECT_EQ(bytes_a_layer({.strategy = "allgather"}), 131'072 + 2 * 131'072);
}

TEST(ContextTraffic, DoublesWhereKeysAreRepeatedBefore) {
  EXPECT_EQ(bytes_a_layer({.backward = false, .shares_key_heads = false}), 262'144);
}

}  // namespace
}  // namespace accelerate
