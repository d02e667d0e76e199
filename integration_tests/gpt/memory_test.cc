// What training holds on a device follows from the shape of the model, to the byte.
// One shape of the cluster each: the bytes are those of one rank, or of buckets between two.
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include "integration_tests/gpt/held_bytes.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;

HeldBytes on_rank_0(const std::string& spec, const gpt::Shape& shape, PrecisionType precision) {
  Cluster cluster(spec);
  HeldBytes bytes;
  cluster.run_on_every_rank([&](Rank& rank) {
    const HeldBytes own = measured(rank, shape, precision);
    if (rank.index() == 0) bytes = own;
  });
  return bytes;
}

TEST(GptMemory, EqualsTheFormulaToTheByte) {
  for (const bool tied : {true, false}) {
    for (const PrecisionType precision : {PrecisionType::kNo, PrecisionType::kBf16}) {
      // Biases of 120 bytes and weights that do not fill their last block.
      const gpt::Shape shape{.layers = 3,
                             .heads = 3,
                             .width = 30,
                             .context = 17,
                             .vocabulary = 101,
                             .tied_head = tied};
      const HeldBytes found = on_rank_0("1x1:h100", shape, precision);
      const HeldBytes expected = formula(shape);
      EXPECT_EQ(found.parameters, expected.parameters) << to_string(precision) << tied;
      EXPECT_EQ(found.gradients, expected.gradients) << to_string(precision) << tied;
      EXPECT_EQ(found.optimizer_state, expected.optimizer_state) << to_string(precision) << tied;
    }
  }
}

// Gradients are in the buckets, and nowhere else.
TEST(GptMemory, HoldsGradientsOnceWhereRanksAverageThem) {
  const gpt::Shape shape;
  const HeldBytes found = on_rank_0("1x2:h100", shape, PrecisionType::kBf16);
  const HeldBytes expected = formula(shape);
  EXPECT_EQ(found.parameters, expected.parameters);
  EXPECT_EQ(found.optimizer_state, expected.optimizer_state);
  // A bucket is one block, and its gradients are not rounded each.
  const int64_t elements = 4 * shape.num_parameters();
  EXPECT_GE(found.gradients, elements);
  EXPECT_LE(found.gradients, expected.gradients);
}

}  // namespace
}  // namespace accelerate
