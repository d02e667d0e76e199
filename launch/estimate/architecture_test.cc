// How much memory a model takes, from shapes alone. What users see of it is in
// launch/commands/estimate_memory_test.cc.
#include "launch/estimate/architecture.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::launcher::estimate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kMiB = 1 << 20;

Architecture described(const std::string& text) {
  const absl::StatusOr<Architecture> architecture = parse_architecture(text);
  EXPECT_TRUE(architecture.ok()) << architecture.status();
  return architecture.value_or(Architecture());
}

std::string error_of(const std::string& text) {
  return std::string(parse_architecture(text).status().message());
}

TEST(Description, NamesTensorsByTheirPaths) {
  const Architecture found = described(R"({"dtype": "bfloat16",
      "parameters": {"scale": []},
      "modules": {"h": {"repeat": 2, "no_split": true, "parameters": {"w": [2, 3]}, "modules": {
                          "fc": {"buffers": {"n": {"shape": [4], "dtype": "int64"}}}}},
                  "none": {"repeat": 0, "parameters": {"w": [5]}},
                  "e": {"parameters": {"w": {"shape": [7]}}}}})");
  std::vector<std::string> lines;
  for (const ArchitectureTensor& each : found.tensors) {
    lines.push_back(each.name + " " + each.dtype + " " + bytes_text(each.elements));
  }
  EXPECT_THAT(lines,
              ElementsAre("e.w BF16 7 bytes", "h.0.fc.n I64 4 bytes", "h.0.w BF16 6 bytes",
                          "h.1.fc.n I64 4 bytes", "h.1.w BF16 6 bytes", "scale BF16 1 bytes"));
  EXPECT_THAT(found.no_split, ElementsAre("h.0", "h.1"));
}

// Several groups, of several names each.
TEST(Description, CountsTiedTensorsOnce) {
  const std::string modules = R"("modules": {
      "a": {"parameters": {"w": [4]}}, "b": {"parameters": {"w": [4]}},
      "c": {"parameters": {"w": [4]}}, "d": {"parameters": {"w": [9]}},
      "e": {"parameters": {"w": [3, 3]}}})";
  const Architecture found =
      described("{" + modules + R"(, "tied": [["b.w", "a.w", "c.w"], ["d.w", "e.w"]]})");
  std::vector<std::string> names;
  for (const ArchitectureTensor& each : found.tensors) names.push_back(each.name);
  EXPECT_THAT(names, ElementsAre("b.w", "d.w"));
  EXPECT_THAT(found.tied, ElementsAre(ElementsAre("b.w", "a.w", "c.w"), ElementsAre("d.w", "e.w")));
  for (const auto& [tied, reason] :
       {std::pair(R"([["a.w", "d.w"]])", "\"d.w\" is tied to a tensor of another size"),
        std::pair(R"([["a.w", "x.w"]])", "no tensor of it"),
        std::pair(R"([["a.w", "b.w"], ["a.w", "c.w"]])", "\"a.w\", which is there already"),
        std::pair(R"([["a.w", "b.w"], ["c.w", "b.w"]])", "\"b.w\", which is there already")}) {
    EXPECT_THAT(error_of("{" + modules + ", \"tied\": " + tied + "}"), HasSubstr(reason));
  }
}

TEST(Description, HasALimitToWhatItStandsFor) {
  const auto repeated = [](const std::string& count) {
    return error_of(R"({"modules": {"a": {"repeat": )" + count +
                    R"(, "parameters": {"w": [1]}}}})");
  };
  EXPECT_EQ(repeated("2"), "");
  EXPECT_THAT(repeated("-1"),
              HasSubstr("a number from 0 to 1000000 at \"/modules/a/repeat\", found -1"));
  EXPECT_THAT(repeated("1000001"), HasSubstr("found 1000001"));
}

TEST(ModelSize, HasTheLargestLayerOfThoseThatMayBeDivided) {
  const std::string text = R"({"modules": {
      "e": {"parameters": {"w": [100]}},
      "h": {"repeat": 2, "modules": {"a": {"parameters": {"w": [70]}},
                                     "b": {"parameters": {"w": [60]}}}}}})";
  Architecture model = described(text);
  EXPECT_EQ(model_size(model).total, 4 * 360);
  EXPECT_EQ(model_size(model).largest_layer, 4 * 100);
  model.no_split = {"h.1"};
  EXPECT_EQ(model_size(model).largest_layer, 4 * 130);
  // The outermost of modules within one another counts.
  model.no_split = {"h.1", "h"};
  EXPECT_EQ(model_size(model).largest_layer, 4 * 260);
  model.no_split = {""};
  EXPECT_EQ(model_size(model).largest_layer, 4 * 360);
}

TEST(ModelSize, CountsFloatingPointNumbersAsFloat32AndOthersAsTheyAre) {
  const auto bytes = [](const char* dtype) {
    return model_size({.tensors = {{.name = "w", .dtype = dtype, .elements = 10}}}).total;
  };
  for (const char* dtype : {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"}) {
    EXPECT_EQ(bytes(dtype), 40) << dtype;
  }
  EXPECT_EQ(bytes("BOOL"), 10);
  EXPECT_EQ(bytes("U8"), 10);
  EXPECT_EQ(bytes("I16"), 20);
  EXPECT_EQ(bytes("I64"), 80);
}

TEST(ModelSize, ShrinksWithTheDtype) {
  EXPECT_EQ(size_in("float32", 80), 80);
  EXPECT_EQ(size_in("float16", 80), 40);
  EXPECT_EQ(size_in("bfloat16", 80), 40);
  EXPECT_EQ(size_in("int8", 80), 20);
  EXPECT_EQ(size_in("int4", 80), 10);
}

TEST(TrainingUsage, IsThatOfAdam) {
  const std::optional<TrainingUsage> full = training_usage("float32", 100);
  ASSERT_TRUE(full.has_value());
  EXPECT_EQ(full->model, 100);
  EXPECT_EQ(full->gradients, 100);
  EXPECT_EQ(full->optimizer, 200);
  EXPECT_EQ(full->step, 400);
  EXPECT_EQ(full->maximum(), 400);
  for (const char* dtype : {"float16", "bfloat16"}) {
    const std::optional<TrainingUsage> half = training_usage(dtype, 100);
    ASSERT_TRUE(half.has_value()) << dtype;
    EXPECT_EQ(half->gradients, 150) << dtype;
    EXPECT_EQ(half->optimizer, 200) << dtype;
    EXPECT_EQ(half->maximum(), 200) << dtype;
  }
  EXPECT_EQ(training_usage("int8", 100), std::nullopt);
  EXPECT_EQ(training_usage("int4", 100), std::nullopt);
  // Whichever part is the largest.
  EXPECT_EQ((TrainingUsage{.model = 9, .gradients = 1, .optimizer = 2, .step = 3}.maximum()), 9);
  EXPECT_EQ((TrainingUsage{.model = 1, .gradients = 9, .optimizer = 2, .step = 3}.maximum()), 9);
  EXPECT_EQ((TrainingUsage{.model = 1, .gradients = 2, .optimizer = 9, .step = 3}.maximum()), 9);
}

// Parameters, gradients and two moments of 800 bytes each, of which the largest layer has 80.
TEST(DividedTraining, DividesWhatEachStageSaysAndNothingElse) {
  const ModelSize size = {.total = 800, .largest_layer = 80};
  const auto bytes = [&](int stage, int64_t dp_shard) {
    return divided_training("float32", size, {.dp_shard_size = dp_shard, .zero_stage = stage});
  };
  EXPECT_EQ(bytes(0, 4), 800 + 800 + 1600);
  EXPECT_EQ(bytes(1, 4), 800 + 800 + 400);
  EXPECT_EQ(bytes(2, 4), 800 + 200 + 400);
  EXPECT_EQ(bytes(3, 4), 200 + 200 + 400 + 2 * 80);
  // A rank that shares with none has all of it, and gathers nothing.
  for (const int stage : {0, 1, 2, 3}) EXPECT_EQ(bytes(stage, 1), 3200) << stage;
  EXPECT_EQ(divided_training("bfloat16", size, {.dp_shard_size = 4, .zero_stage = 3}), 480);
  EXPECT_EQ(divided_training("int8", size, {}), std::nullopt);
}

// Formula 2 of the paper for s = h = 1024, b = 1 and a = 4, each term by itself.
TEST(ActivationBytes, FollowTheirFormula) {
  const TransformerShape shape = {
      .hidden_size = 1024, .num_hidden_layers = 3, .num_attention_heads = 4};
  const auto bytes = [&](ActivationOptions options, const char* dtype = "bfloat16") {
    options.sequence_length = 1024;
    return activation_bytes(dtype, shape, options);
  };
  EXPECT_EQ(bytes({}), 3 * 34 * kMiB);
  EXPECT_EQ(bytes({.batch_size = 2}), 3 * 68 * kMiB);
  EXPECT_EQ(bytes({.tp_size = 2}), 3 * (10 + 24 / 2) * kMiB);
  EXPECT_EQ(bytes({.keeps_attention_scores = true}), 3 * (34 + 20) * kMiB);
  EXPECT_EQ(bytes({.tp_size = 4, .keeps_attention_scores = true}), 3 * (10 + (24 + 20) / 4) * kMiB);
  // Inputs of all layers, and what one layer keeps while it is recomputed.
  EXPECT_EQ(bytes({.activation_checkpointing = true}), (3 * 2 + 34) * kMiB);
  EXPECT_EQ(bytes({.tp_size = 2, .activation_checkpointing = true}), (3 * 2 + 22) * kMiB);
  // Parts of the sequences divide the rest as well.
  EXPECT_EQ(bytes({.tp_size = 2, .sequence_parallel = true}), 3 * 34 / 2 * kMiB);
  EXPECT_EQ(bytes({.tp_size = 2, .sequence_parallel = true, .activation_checkpointing = true}),
            (3 * 2 + 34) / 2 * kMiB);
  // Masks of dropout have a byte in every dtype.
  EXPECT_EQ(bytes({}, "float32"), 3 * (16 + 2 + 48) * kMiB);
  EXPECT_EQ(bytes({.keeps_attention_scores = true}, "float32"), 3 * (66 + 36) * kMiB);
  EXPECT_EQ(bytes({}, "int8"), std::nullopt);
}

// What the autograd of a layer keeps, element by element, for 4 sequences of 128 in float32.
TEST(ActivationBytes, AreThoseOfLayersWithoutDropoutWhereTheirSizesAreKnown) {
  const auto of_a_block = [](const TransformerShape& shape, int64_t tp, bool has_shards) {
    return activation_bytes(
        "float32", shape,
        {.batch_size = 4, .sequence_length = 128, .tp_size = tp, .sequence_parallel = has_shards});
  };
  const TransformerShape gpt = {.hidden_size = 128,
                                .num_hidden_layers = 1,
                                .num_attention_heads = 4,
                                .intermediate_size = 512};
  EXPECT_EQ(of_a_block(gpt, 1, false), 4'210'688);
  EXPECT_EQ(of_a_block(gpt, 2, false), 2'633'728);
  EXPECT_EQ(of_a_block(gpt, 2, true), 2'105'344);
  const TransformerShape llama = {.hidden_size = 128,
                                  .num_hidden_layers = 1,
                                  .num_attention_heads = 4,
                                  .num_key_value_heads = 2,
                                  .intermediate_size = 352,
                                  .is_gated = true};
  EXPECT_EQ(of_a_block(llama, 2, false), 3'022'848);
  EXPECT_EQ(of_a_block(llama, 2, true), 2'496'512);
  // Each of four ranks has one of the two heads of keys.
  EXPECT_EQ(of_a_block(llama, 4, false), 2'103'296);
  // Llama 7B, in bfloat16.
  const TransformerShape large = {.hidden_size = 4096,
                                  .num_hidden_layers = 1,
                                  .num_attention_heads = 32,
                                  .num_key_value_heads = 32,
                                  .intermediate_size = 11'008,
                                  .is_gated = true};
  const auto of_large = [&large](int64_t tp, bool has_shards) {
    return activation_bytes(
        "bfloat16", large,
        {.sequence_length = 4096, .tp_size = tp, .sequence_parallel = has_shards});
  };
  EXPECT_EQ(of_large(1, false), 663'257'088);
  EXPECT_EQ(of_large(4, false), 266'502'144);
  EXPECT_EQ(of_large(4, true), 165'814'272);
  // Every layer keeps as much.
  TransformerShape deep = gpt;
  deep.num_hidden_layers = 3;
  EXPECT_EQ(of_a_block(deep, 2, false), 3 * 2'633'728);
}

TEST(Description, TellsAGateFromOtherPerceptrons) {
  const auto is_gated = [](const std::string& module) {
    return described(R"({"modules": {"mlp": {"modules": {")" + module +
                     R"(": {"parameters": {"w": [2]}}}}}})")
        .transformer.is_gated;
  };
  for (const char* module : {"gate", "gate_proj", "gate_up_proj"}) {
    EXPECT_TRUE(is_gated(module)) << module;
  }
  EXPECT_FALSE(is_gated("up"));
}

TEST(HubCache, IsTheFirstThatIsNamed) {
  std::vector<std::string> environment = {"HOME=/me"};
  EXPECT_EQ(hub_cache_folder({}), ".cache/huggingface/hub");
  EXPECT_EQ(hub_cache_folder(environment), "/me/.cache/huggingface/hub");
  environment.push_back("XDG_CACHE_HOME=/cache");
  EXPECT_EQ(hub_cache_folder(environment), "/cache/huggingface/hub");
  environment.push_back("HF_HOME=/hf");
  EXPECT_EQ(hub_cache_folder(environment), "/hf/hub");
  environment.push_back("HF_HUB_CACHE=/hub");
  EXPECT_EQ(hub_cache_folder(environment), "/hub");
  environment.push_back("HF_HUB_CACHE=");
  EXPECT_EQ(hub_cache_folder(environment), "/hf/hub") << "what is empty is not set";
}

}  // namespace
}  // namespace accelerate::launcher::estimate
