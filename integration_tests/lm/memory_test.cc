// What training holds on a device follows from the model's configuration, to the byte.
// One shape of the cluster each: the bytes are those of one rank, or of buckets between two.
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include "integration_tests/lm/held_bytes.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;

HeldBytes on_rank_0(const std::string& spec, const lm::Config& config, PrecisionType precision) {
  Cluster cluster(spec);
  HeldBytes bytes;
  cluster.run_on_every_rank([&](Rank& rank) {
    const HeldBytes own = measured(rank, config, precision);
    if (rank.index() == 0) bytes = own;
  });
  return bytes;
}

TEST(LmMemory, EqualsTheFormulaToTheByte) {
  for (const lm::Blocks blocks : {lm::Blocks::kGpt, lm::Blocks::kLlama}) {
    for (const int64_t tied : {0, 1}) {
      for (const PrecisionType precision : {PrecisionType::kNo, PrecisionType::kBf16}) {
        // Vectors of 120 bytes and weights that do not fill their last block.
        const lm::Config config = lm::model_config("tiny", {.blocks = blocks,
                                                            .layers = 3,
                                                            .hidden = 30,
                                                            .heads = 3,
                                                            .kv_heads = 1,
                                                            .sequence_length = 17,
                                                            .vocabulary = 101,
                                                            .tied_head = tied});
        const HeldBytes found = on_rank_0("1x1:h100", config, precision);
        const HeldBytes expected = formula(config);
        const std::string which = to_string(precision) + std::to_string(tied);
        EXPECT_EQ(found.parameters, expected.parameters) << which;
        EXPECT_EQ(found.gradients, expected.gradients) << which;
        EXPECT_EQ(found.optimizer_state, expected.optimizer_state) << which;
      }
    }
  }
}

// Gradients are in the buckets, and nowhere else.
TEST(LmMemory, HoldsGradientsOnceWhereRanksAverageThem) {
  const lm::Config config = lm::model_config("tiny");
  const HeldBytes found = on_rank_0("1x2:h100", config, PrecisionType::kBf16);
  const HeldBytes expected = formula(config);
  EXPECT_EQ(found.parameters, expected.parameters);
  EXPECT_EQ(found.optimizer_state, expected.optimizer_state);
  // A bucket is one block, and its gradients are not rounded each.
  const int64_t bytes = 4 * lm::parameter_count(config);
  EXPECT_GE(found.gradients, bytes);
  EXPECT_LE(found.gradients, expected.gradients);
}

}  // namespace
}  // namespace accelerate
