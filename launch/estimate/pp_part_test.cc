#include "launch/estimate/parts.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::launcher::estimate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Architecture described(const std::string& text) {
  const absl::StatusOr<Architecture> architecture = parse_architecture(text);
  EXPECT_TRUE(architecture.ok()) << architecture.status();
  return architecture.value_or(Architecture());
}

std::vector<double> elements_of(const std::vector<Architecture>& stages) {
  std::vector<double> all;
  for (const Architecture& stage : stages) {
    double& sum = all.emplace_back(0);
    for (const ArchitectureTensor& tensor : stage.tensors) sum += tensor.elements;
  }
  return all;
}

// Experts have numbers inside of the blocks' ones.
constexpr char kModel[] = R"({"modules": {
    "embed_tokens": {"parameters": {"weight": [1000]}},
    "layers": {"repeat": 12, "modules": {
        "attention": {"parameters": {"weight": [6]}},
        "experts": {"repeat": 2, "parameters": {"up": [2]}}}},
    "norm": {"parameters": {"weight": [5]}},
    "head": {"parameters": {"weight": [1000]}}})";

TEST(PpParts, AreStagesOfNeighbouringBlocks) {
  const Architecture model = described(std::string(kModel) + "}");
  const absl::StatusOr<std::vector<Architecture>> four = pp_parts(model, 4);
  ASSERT_TRUE(four.ok()) << four.status();
  // 14 parts: 4, 4, 3 and 3.
  EXPECT_THAT(elements_of(*four), ElementsAre(1030, 40, 30, 1025));
  EXPECT_EQ((*four)[1].tensors.front().name, "layers.3.attention.weight")
      << "by number, and not by name";
  EXPECT_THAT(elements_of(*pp_parts(model, 1)), ElementsAre(2125));
}

// Names of other libraries' tables.
TEST(PpParts, BeginWithTablesByWhateverNames) {
  for (const char* const name : {"wte", "wpe", "tokens", "positions", "word_embeddings"}) {
    const Architecture model = described(std::string(R"({"modules": {")") + name + R"(": {
        "parameters": {"weight": [100]}}, "h": {"repeat": 2, "parameters": {"weight": [6]}},
        "ln_f": {"parameters": {"weight": [5]}}}})");
    EXPECT_THAT(elements_of(*pp_parts(model, 2)), ElementsAre(106, 11)) << name;
  }
}

TEST(PpParts, HaveTiedTensorsWhereverTheyAreUsed) {
  const Architecture model =
      described(std::string(kModel) + R"(, "tied": [["embed_tokens.weight", "head.weight"]]})");
  EXPECT_THAT(elements_of(*pp_parts(model, 2)), ElementsAre(1060, 1065));
}

TEST(PpParts, HaveAsManyBlocksAsTheirPartsLeave) {
  EXPECT_THAT(*blocks_of_stages(4, 2), ElementsAre(2, 2));
  EXPECT_THAT(*blocks_of_stages(4, 4), ElementsAre(1, 2, 1, 0));
  EXPECT_THAT(*blocks_of_stages(2, 4), ElementsAre(0, 1, 1, 0));
}

TEST(PpParts, AreRefusedWithTheMostStages) {
  EXPECT_EQ(pp_parts(described(std::string(kModel) + "}"), 16).status().message(),
            "12 blocks are 14 parts with what is before and behind them, so that --pp_size is 14 "
            "at most");
  EXPECT_THAT(
      std::string(pp_parts(described(R"({"parameters": {"w": [4]}})"), 2).status().message()),
      HasSubstr("has no blocks for --pp_size"));
}

}  // namespace
}  // namespace accelerate::launcher::estimate
