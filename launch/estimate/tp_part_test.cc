// What ranks along tp have of models whose figures are known by hand.
#include "launch/estimate/parts.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launch/estimate/architecture.h"

namespace accelerate::launcher::estimate {
namespace {

using ::testing::HasSubstr;

// Four blocks of 128 features, whose head is the embedding's weight; open for more members.
constexpr char kGpt[] = R"({
  "parameters": {"positions": [128, 128]},
  "modules": {
    "tokens": {"parameters": {"weight": [256, 128]}},
    "blocks": {"repeat": 4, "modules": {
      "norm1": {"parameters": {"weight": [128], "bias": [128]}},
      "norm2": {"parameters": {"weight": [128], "bias": [128]}},
      "attention": {"modules": {
        "qkv": {"parameters": {"weight": [384, 128], "bias": [384]}},
        "project": {"parameters": {"weight": [128, 128], "bias": [128]}}}},
      "mlp": {"modules": {
        "up": {"parameters": {"weight": [512, 128], "bias": [512]}},
        "down": {"parameters": {"weight": [128, 512], "bias": [128]}}}}}},
    "norm": {"parameters": {"weight": [128], "bias": [128]}}})";

// The same with gates, fewer heads of keys, and a head of its own.
constexpr char kLlama[] = R"({
  "modules": {
    "tokens": {"parameters": {"weight": [256, 128]}},
    "blocks": {"repeat": 4, "modules": {
      "norm1": {"parameters": {"weight": [128]}},
      "norm2": {"parameters": {"weight": [128]}},
      "attention": {"modules": {
        "qkv": {"parameters": {"weight": [256, 128]}},
        "project": {"parameters": {"weight": [128, 128]}}}},
      "mlp": {"modules": {
        "gate": {"parameters": {"weight": [352, 128]}},
        "up": {"parameters": {"weight": [352, 128]}},
        "down": {"parameters": {"weight": [128, 352]}}}}}},
    "norm": {"parameters": {"weight": [128]}},
    "head": {"parameters": {"weight": [256, 128]}}})";

Architecture described(const std::string& text, const char* plan = nullptr) {
  const std::string end = plan == nullptr ? "}" : std::string(R"(, "tp_plan": )") + plan + "}";
  const absl::StatusOr<Architecture> architecture = parse_architecture(text + end);
  EXPECT_TRUE(architecture.ok()) << architecture.status();
  return architecture.value_or(Architecture());
}

TpPart part_of(const Architecture& architecture, int64_t ranks) {
  const absl::StatusOr<TpPart> part = tp_part(architecture, ranks);
  EXPECT_TRUE(part.ok()) << part.status();
  return part.value_or(TpPart());
}

double elements_of(const Architecture& architecture) {
  double elements = 0;
  for (const ArchitectureTensor& tensor : architecture.tensors) elements += tensor.elements;
  return elements;
}

std::string error_of(const Architecture& architecture, int64_t ranks) {
  return std::string(tp_part(architecture, ranks).status().message());
}

TEST(TpPart, HasTheElementsThatTheUsualNamesLeaveARank) {
  const Architecture gpt = described(kGpt);
  EXPECT_EQ(elements_of(gpt), 842'496);
  EXPECT_EQ(elements_of(part_of(gpt, 2).architecture), 431'104);
  EXPECT_EQ(part_of(gpt, 2).why, "by the usual names of layers");
  const Architecture llama = described(kLlama);
  EXPECT_EQ(elements_of(llama), 803'968);
  EXPECT_EQ(elements_of(part_of(llama, 2).architecture), 402'560);
}

// Eight heads of queries share two of keys and values; open for more members.
constexpr char kGrouped[] = R"({
  "modules": {"layers": {"repeat": 1, "modules": {"self_attn": {"modules": {
    "q_proj": {"parameters": {"weight": [128, 128]}},
    "k_proj": {"parameters": {"weight": [32, 128], "bias": [32]}},
    "v_proj": {"parameters": {"weight": [32, 128]}},
    "o_proj": {"parameters": {"weight": [128, 128]}}}}}}},
  "transformer": {"num_attention_heads": 8, "num_key_value_heads": 2})";

// A head is 16 rows of 128, which each rank has at least.
TEST(TpPart, HasAHeadOfKeysWhereThereAreFewerThanRanks) {
  const Architecture by_names = described(kGrouped);
  EXPECT_EQ(elements_of(by_names), 40'992);
  const Architecture by_plan = described(kGrouped, R"({
      "layers.*.self_attn.q_proj": "colwise", "layers.*.self_attn.k_proj": "colwise",
      "layers.*.self_attn.v_proj": "colwise", "layers.*.self_attn.o_proj": "rowwise"})");
  for (const Architecture& model : {by_names, by_plan}) {
    const int64_t keys_and_values = 2 * 16 * 128 + 16;
    EXPECT_EQ(elements_of(part_of(model, 2).architecture), 2 * 64 * 128 + keys_and_values);
    EXPECT_EQ(elements_of(part_of(model, 4).architecture), 2 * 32 * 128 + keys_and_values);
    EXPECT_EQ(elements_of(part_of(model, 8).architecture), 2 * 16 * 128 + keys_and_values);
  }
  // In one weight with the queries they are divided as these are, or not at all.
  const std::string fused =
      std::string(kLlama) +
      R"(, "transformer": {"num_attention_heads": 4, "num_key_value_heads": 2})";
  EXPECT_EQ(elements_of(part_of(described(fused), 2).architecture), 402'560);
  EXPECT_EQ(
      error_of(described(fused), 4),
      "\"blocks.0.attention.qkv.weight\" is several weights in one, with 2 heads of keys and "
      "values, which 4 ranks do not divide evenly; --tp_size 2 does, and ranks may share heads "
      "of keys and values in layers of their own");
}

TEST(TpPart, FollowsThePlanRatherThanTheNames) {
  const Architecture model = described(kGpt, R"({
      "blocks.*.mlp.up": "colwise", "blocks.*.mlp.down": "rowwise",
      "blocks.0.mlp.*": "replicate"})");
  const TpPart part = part_of(model, 4);
  EXPECT_EQ(part.why, "by its tp_plan");
  // Weights and biases of the first layer, weights of the second; the first rule counts.
  const double divided = 4 * (2 * 512 * 128 + 512);
  EXPECT_EQ(elements_of(part.architecture), 842'496 - divided * 3 / 4);
  for (const ArchitectureTensor& tensor : part.architecture.tensors) {
    if (tensor.name == "blocks.0.mlp.up.weight") {
      EXPECT_EQ(tensor.shape, std::vector<int64_t>({128, 128}));
    } else if (tensor.name == "blocks.0.mlp.down.weight") {
      EXPECT_EQ(tensor.shape, std::vector<int64_t>({128, 128}));
    } else if (tensor.name == "blocks.0.mlp.down.bias") {
      EXPECT_EQ(tensor.shape, std::vector<int64_t>({128})) << "each rank adds all of it";
    }
  }
}

// Open for more members.
constexpr char kExperts[] = R"({
  "modules": {"blocks": {"repeat": 1, "modules": {
    "attention": {"modules": {
      "qkv": {"parameters": {"weight": [24, 8]}}, "project": {"parameters": {"weight": [8, 8]}}}},
    "mlp": {"modules": {
      "router": {"parameters": {"weight": [4, 8]}},
      "experts": {"parameters": {"gate": [4, 6, 8], "up": [4, 6, 8], "down": [4, 8, 6]}},
      "shared": {"modules": {
        "gate": {"parameters": {"weight": [6, 8]}}, "up": {"parameters": {"weight": [6, 8]}},
        "down": {"parameters": {"weight": [8, 6]}}}}}}}}})";

TEST(TpPart, DividesTheInsideOfEachExpert) {
  const char* const plan = R"({"blocks.*.attention.qkv": "colwise",
                               "blocks.*.attention.project": "rowwise"})";
  const double attention = (24 + 8) * 8, router = 4 * 8, shared = 3 * 6 * 8, experts = 4 * shared;
  EXPECT_EQ(elements_of(part_of(described(kExperts), 2).architecture),
            attention / 2 + router + experts / 2 + shared / 2);
  const TpPart part = part_of(described(kExperts, plan), 2);
  EXPECT_EQ(elements_of(part.architecture), attention / 2 + router + experts / 2 + shared)
      << "the plan leaves the shared expert whole";
  for (const ArchitectureTensor& tensor : part.architecture.tensors) {
    if (tensor.name == "blocks.0.mlp.experts.gate") {
      EXPECT_EQ(tensor.shape, std::vector<int64_t>({4, 3, 8}));
    } else if (tensor.name == "blocks.0.mlp.experts.down") {
      EXPECT_EQ(tensor.shape, std::vector<int64_t>({4, 8, 3}));
    }
  }
  EXPECT_EQ(error_of(described(kExperts, plan), 4),
            "\"blocks.0.mlp.experts.down\" has 6 features along dim 2, which 4 ranks do not divide "
            "evenly; --tp_size 3 does");
}

TEST(TpPart, NamesATiedTensorByAnyOfItsNames) {
  const char* const modules = R"({"modules": {
      "embed": {"parameters": {"weight": [8, 4]}}, "out": {"parameters": {"weight": [8, 4]}}},
      "tied": [["embed.weight", "out.weight"]])";
  EXPECT_EQ(elements_of(part_of(described(modules, R"({"out": "colwise_rep"})"), 2).architecture),
            16);
}

TEST(TpPart, IsOfEveryTensorWhereNothingSaysMore) {
  const Architecture model = described(R"({"modules": {
      "a": {"parameters": {"weight": [3, 5]}}, "head": {"parameters": {"weight": [2, 2]}}})");
  const TpPart part = part_of(model, 2);
  EXPECT_EQ(elements_of(part.architecture), 9.5);
  EXPECT_EQ(part.why, "every tensor divided, as no tp_plan says which are");
}

TEST(TpPart, RefusesWhatTheRanksDoNotDivideEvenly) {
  const char* const plan = R"({"blocks.*.mlp.up": "colwise", "blocks.*.mlp.down": "rowwise"})";
  EXPECT_EQ(
      error_of(described(kLlama, plan), 3),
      "\"blocks.0.mlp.down.weight\" has 352 features along dim 1, which 3 ranks do not divide "
      "evenly; --tp_size 2 does");
  // Two weights in one are divided each by itself.
  const char* const packed = R"({"modules": {"gate_up": {"parameters": {"weight": [6, 4]}}})";
  EXPECT_THAT(error_of(described(packed, R"({"gate_up": "packed_colwise"})"), 2),
              HasSubstr("6 features along dim 0, which 2 ranks do not divide evenly"));
  EXPECT_EQ(
      elements_of(part_of(described(packed, R"({"gate_up": "packed_colwise"})"), 3).architecture),
      8);
  // By the names alone such a tensor stays whole.
  EXPECT_EQ(elements_of(part_of(described(kLlama), 3).architecture), 803'968);
  EXPECT_THAT(error_of(described(kLlama, R"({"blocks.*.mlp.ups": "colwise"})"), 2),
              HasSubstr("tp_plan: \"blocks.*.mlp.ups\" names no tensor"));
}

}  // namespace
}  // namespace accelerate::launcher::estimate
