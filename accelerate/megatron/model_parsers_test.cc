#include "accelerate/megatron/model_parsers.h"

#include <cstdint>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/megatron/preparation.h"
#include "accelerate/testing/recorded_warnings.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

MegatronLMPlugin resolved(const MegatronLMPlugin& plugin = {}) {
  Environment environment;
  for (const auto& [name, value] : environment.variables()) {
    if (name.starts_with("MEGATRON_LM_")) environment.unset(name);
  }
  return resolve(plugin, environment);
}

MegatronModelFacts gpt2() {
  return {.config = {{"model_type", "GPT2"},
                     {"n_layer", 2},
                     {"n_embd", 8},
                     {"n_head", 2},
                     {"n_positions", 64},
                     {"vocab_size", 100},
                     {"return_dict", true}}};
}

TEST(ModelParsers, TakeTheLengthFromWhoeverSaysIt) {
  const auto length = [](const MegatronLMPlugin& given,
                         const std::optional<MegatronBatchShapes>& batch) {
    MegatronLMPlugin plugin = resolved(given);
    set_network_size_args(plugin, gpt2(), batch);
    return plugin.megatron_lm_default_args["seq_length"].get<int64_t>();
  };
  const MegatronBatchShapes batch = {{"input_ids", {4, 7}}};
  const RecordedWarnings warnings;
  EXPECT_EQ(length({}, std::nullopt), 64);
  EXPECT_EQ(length({}, batch), 7);
  EXPECT_EQ(length({.decoder_seq_length = 5}, batch), 5);
  EXPECT_EQ(length({.seq_length = 9}, batch), 9);
  EXPECT_THAT(warnings.texts(), IsEmpty());
  EXPECT_EQ(length({.seq_length = 9, .decoder_seq_length = 5}, batch), 5);
  EXPECT_THAT(warnings.texts(), ElementsAre(HasSubstr("Using `decoder_seq_length`")));
  EXPECT_THAT(value_error_of([&] { length({}, MegatronBatchShapes{{"labels", {4, 7}}}); }),
              HasSubstr("the batch has no \"input_ids\""));
}

TEST(ModelParsers, NameWhatTheyDoNotKnow) {
  MegatronLMPlugin plugin = resolved();
  const auto before = plugin.megatron_lm_default_args;
  MegatronModelFacts model = gpt2();
  model.config.erase("n_embd");
  EXPECT_THAT(value_error_of([&] { set_network_size_args(plugin, model); }),
              HasSubstr("no \"n_embd\""));
  model.config["model_type"] = "bloom";
  EXPECT_THAT(value_error_of([&] { set_network_size_args(plugin, model); }),
              AllOf(HasSubstr("\"bloom\""), HasSubstr("gpt2")));
  EXPECT_EQ(plugin.megatron_lm_default_args, before);
}

TEST(ModelParsers, CanBeAdded) {
  MegatronModelParsers parsers = megatron_model_parsers();
  const auto parse = [](int64_t layers) {
    return [layers](MegatronLMPlugin& plugin, const MegatronModelFacts& /*model*/,
                    const std::optional<MegatronBatchShapes>& /*batch*/) {
      plugin.megatron_lm_default_args["num_layers"] = layers;
    };
  };
  add_model_config_to_megatron_parser(parsers, "bloom", parse(3));
  add_model_config_to_megatron_parser(parsers, "gpt2", parse(4));
  EXPECT_EQ(parsers.size(), megatron_model_parsers().size() + 1);
  MegatronLMPlugin plugin = resolved();
  set_network_size_args(plugin, {.config = {{"model_type", "bloom"}}}, std::nullopt, parsers);
  EXPECT_EQ(plugin.megatron_lm_default_args["num_layers"], 3);
  set_network_size_args(plugin, gpt2(), std::nullopt, parsers);
  EXPECT_EQ(plugin.megatron_lm_default_args["num_layers"], 4);
}

TEST(Preparation, GoesFromObjectsToArguments) {
  MegatronLMPlugin plugin = resolved({.tp_degree = 2, .num_micro_batches = 3});
  set_prepared_args(
      plugin,
      {.model = gpt2(),
       .optimizer =
           MegatronOptimizerFacts{"SGD", {{"lr", 0.1}, {"momentum", 0.9}, {"weight_decay", 0.0}}},
       .scheduler = MegatronLMDummyScheduler{.total_num_steps = 100, .warmup_num_steps = 40},
       .batch_sizes = {4, 2}},
      8);
  EXPECT_EQ(plugin.data_parallel_size, 4);
  EXPECT_EQ(plugin.global_batch_size, 4 * 2 * 3);
  EXPECT_EQ(plugin.train_iters, 25);
  EXPECT_EQ(plugin.lr_warmup_iters, 10);
  EXPECT_EQ(plugin.megatron_lm_default_args["optimizer"], "sgd");
  EXPECT_EQ(megatron_batch_size(plugin), 6);
}

TEST(Preparation, TakesTheSmallestOrTheLargestBatch) {
  for (const bool is_min : {true, false}) {
    MegatronLMPlugin plugin = resolved({.is_train_batch_min = is_min});
    set_prepared_args(plugin, {.batch_sizes = {4, 2, 3}}, 1);
    EXPECT_EQ(plugin.micro_batch_size, is_min ? 2 : 4);
  }
}

TEST(Preparation, RefusesWhatTheEngineCannotUse) {
  const auto refused = [](const MegatronLMPlugin& given, const MegatronObjects& objects) {
    MegatronLMPlugin plugin = resolved(given);
    std::string message = value_error_of([&] { set_prepared_args(plugin, objects, 1); });
    EXPECT_EQ(plugin.data_parallel_size, std::nullopt) << message;
    return message;
  };
  EXPECT_THAT(refused({}, {.model = gpt2()}), HasSubstr("dataloader"));
  EXPECT_THAT(refused({}, {.model = gpt2(), .batch_sizes = {4}, .models_before = 1}),
              HasSubstr("multiple models"));
  EXPECT_THAT(refused({}, {.has_other_scheduler = true, .batch_sizes = {4}}),
              HasSubstr("MegatronLMDummyScheduler"));
  EXPECT_THAT(refused({.megatron_dataset_flag = true}, {.batch_sizes = {4}}),
              HasSubstr("dataloader parameter"));
  EXPECT_THAT(
      refused({.megatron_dataset_flag = true},
              {.dummy_loader = MegatronLMDummyDataLoader(nlohmann::ordered_json{{"seed", 1}})}),
      HasSubstr("no \"micro_batch_size\""));
  EXPECT_THAT(value_error_of(
                  [] { MegatronLMDummyDataLoader(nlohmann::ordered_json{{"data_paths", "a"}}); }),
              HasSubstr("MegatronLMDummyDataLoader: nothing here reads data_paths"));
}

// What fields and objects say comes later, so that the run would differ from what is asked for.
TEST(Preparation, NamesOtherArgumentsThatContradictFieldsOrObjects) {
  const MegatronObjects objects = {
      .model = gpt2(),
      .optimizer =
          MegatronOptimizerFacts{"SGD", {{"lr", 0.1}, {"momentum", 0.9}, {"weight_decay", 0.0}}},
      .scheduler = MegatronLMDummyScheduler{.total_num_steps = 100},
      .batch_sizes = {4}};
  const auto problem = [&](const nlohmann::ordered_json& others) {
    MegatronLMPlugin plugin = resolved({.other_megatron_args = others});
    return value_error_of([&] { set_prepared_args(plugin, objects, 1); });
  };
  using Json = nlohmann::ordered_json;
  EXPECT_THAT(problem(Json{{"min_lr", 0.5}, {"lr", 0.25}}),
              AllOf(HasSubstr("other_megatron_args has min_lr=0.5, which is 0"),
                    HasSubstr("lr=0.25, which is 0.1")));
  EXPECT_THAT(problem(Json{{"num_layers", 7}}), HasSubstr("num_layers=7, which is 2 by "));
  EXPECT_THAT(problem(Json{{"num_micro_batches", 8}}),
              HasSubstr("num_micro_batches=8, which is 1"));
  EXPECT_THAT(problem(Json{{"micro_batch_size", 8}}), HasSubstr("micro_batch_size=8, which is 4"));
  EXPECT_THAT(problem(Json{{"consumed_samples", {8, 0, 0}}}),
              HasSubstr("consumed_samples=[8,0,0], which is null"));
  EXPECT_THAT(problem(Json{{"lr_mult", 2}}), HasSubstr("lr_mult=2, which is 1"));
  // Equal ones, one that no field has, and one without effect.
  EXPECT_EQ(problem(Json{{"num_layers", 2},
                         {"num_micro_batches", 1},
                         {"clip_grad", 9.0},
                         {"train_samples", nullptr},
                         {"tokenizer_type", "GPTSentencePieceTokenizer"}}),
            "no error");
}

}  // namespace
}  // namespace accelerate
