#include "accelerate/config/megatron_command_line.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/config/megatron_arguments.h"
#include "accelerate/platform/environment.h"
#include "accelerate/testing/recorded_warnings.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::ordered_json;
using Texts = std::vector<std::string>;

std::string refused(const Texts& arguments, int64_t num_ranks = 1) {
  return value_error_of([&] { read_megatron_command_line(arguments, {.num_ranks = num_ranks}); });
}

TEST(MegatronCommandLine, FillsFieldsAndArguments) {
  const MegatronCommandLine line = read_megatron_command_line({"--tensor-model-parallel-size",
                                                               "2",
                                                               "--sequence-parallel",
                                                               "--micro-batch-size=4",
                                                               "--global-batch-size",
                                                               "48",
                                                               "--clip-grad",
                                                               "0.5",
                                                               "--lr",
                                                               "3e-4",
                                                               "--lr-decay-style",
                                                               "cosine",
                                                               "--train-iters",
                                                               "100",
                                                               "--disable-bias-linear",
                                                               "--data-path",
                                                               "0.3",
                                                               "a",
                                                               "0.7",
                                                               "b",
                                                               "--vocab-size",
                                                               "100",
                                                               "--bf16"},
                                                              {.num_ranks = 8});
  const MegatronLMPlugin& plugin = line.plugin;
  EXPECT_EQ(plugin.tp_degree, 2);
  EXPECT_EQ(plugin.sequence_parallelism, true);
  EXPECT_EQ(plugin.gradient_clipping, 0.5);
  EXPECT_EQ(plugin.lr_decay_style, "cosine");
  EXPECT_EQ(plugin.train_iters, 100);
  EXPECT_EQ(plugin.num_micro_batches, 3) << "48 rows of 4 data-parallel ranks, 4 at a time";
  EXPECT_TRUE(plugin.megatron_dataset_flag);
  const Json& args = plugin.other_megatron_args.value();
  EXPECT_EQ(args.at("lr"), 3e-4);
  EXPECT_EQ(args.at("add_bias_linear"), false);
  EXPECT_EQ(args.at("data_path"), Json(Texts{"0.3", "a", "0.7", "b"}));
  EXPECT_EQ(args.at("orig_vocab_size"), 100);
  EXPECT_EQ(args.at("model_type_name"), "gpt");
  EXPECT_EQ(line.dataset_args.at("micro_batch_size"), 4);
  EXPECT_EQ(line.mixed_precision, PrecisionType::kBf16);
  EXPECT_THAT(line.without_effect, IsEmpty());
  const Json resolved = resolve(plugin, Environment()).megatron_lm_default_args;
  EXPECT_EQ(resolved.at("tensor_model_parallel_size"), 2);
  EXPECT_EQ(resolved.at("lr"), 3e-4);
}

// A plug-in by itself has other values.
TEST(MegatronCommandLine, TakesMegatronLmsValuesWhereItSaysNothing) {
  const MegatronCommandLine line = read_megatron_command_line({}, {.model_type_name = "bert"});
  EXPECT_EQ(line.plugin.hidden_dropout, 0.1);
  EXPECT_EQ(line.plugin.calculate_per_token_loss, false);
  EXPECT_EQ(line.plugin.num_micro_batches, 1);
  EXPECT_FALSE(line.plugin.megatron_dataset_flag);
  EXPECT_EQ(line.plugin.other_megatron_args->at("optimizer"), "adam");
  EXPECT_EQ(line.plugin.other_megatron_args->at("model_type_name"), "bert");
  EXPECT_TRUE(line.dataset_args.is_null());
  EXPECT_EQ(line.mixed_precision, PrecisionType::kNo);
}

// Once each, and says why.
TEST(MegatronCommandLine, ListsWhatHasNoEffect) {
  const RecordedWarnings warnings;
  const MegatronCommandLine line = read_megatron_command_line(
      {"--use-flash-attn", "--merge-file", "merges", "--no-rope-fusion", "--sequence-parallel",
       "--tokenizer-type", "GPT2BPETokenizer", "--use-flash-attn"});
  EXPECT_THAT(line.without_effect,
              ElementsAre("--use-flash-attn", "--merge-file", "--no-rope-fusion",
                          "--tokenizer-type", "--sequence-parallel"))
      << "one rank along tp has whole sequences";
  EXPECT_THAT(warnings.texts(),
              ElementsAre("UserWarning: Megatron-LM's command line: --use-flash-attn, "
                          "--no-rope-fusion have no effect: LibTorch chooses its kernels and "
                          "messages by itself; --merge-file, --tokenizer-type have no effect: data "
                          "are tokens already; --sequence-parallel has no effect: one rank along "
                          "tp has whole sequences"));
  EXPECT_EQ(line.plugin.sequence_parallelism, false);
  EXPECT_FALSE(line.plugin.other_megatron_args->contains("use_flash_attn"));
}

TEST(MegatronCommandLine, DividesExpertsAlongTpWhereItSaysNothing) {
  const auto size = [](Texts arguments) {
    arguments.insert(arguments.end(), {"--tensor-model-parallel-size", "4"});
    const MegatronCommandLine line = read_megatron_command_line(arguments, {.num_ranks = 4});
    const int64_t size = line.plugin.expert_tensor_parallel_size.value();
    EXPECT_EQ(line.plugin.other_megatron_args->at("expert_tensor_parallel_size"), size);
    return size;
  };
  EXPECT_EQ(size({}), 4);
  EXPECT_EQ(size({"--expert-tensor-parallel-size", "1"}), 1);
  EXPECT_THAT(
      refused({"--tensor-model-parallel-size", "4", "--expert-tensor-parallel-size", "2"}, 4),
      HasSubstr("set it to 1 or 4"));
}

TEST(MegatronCommandLine, TheLastOfSeveralCounts) {
  EXPECT_EQ(read_megatron_command_line({"--seed", "1", "--seed", "2"})
                .plugin.other_megatron_args->at("seed"),
            2);
}

TEST(MegatronCommandLine, NamesFlagsThatNothingReads) {
  EXPECT_THAT(refused({"--save", "folder", "--lr", "0.1", "--nom-layers", "2"}),
              HasSubstr("nothing here reads --save, --nom-layers; leave them out"));
  EXPECT_THAT(refused({"--data-parallel-size", "2"}), HasSubstr("--data-parallel-size"))
      << "follows from others";
  EXPECT_THAT(refused({"folder", "--lr", "0.1"}), HasSubstr("expected a flag, got \"folder\""));
}

TEST(MegatronCommandLine, NamesValuesThatFlagsDoNotTake) {
  EXPECT_THAT(refused({"--lr"}), HasSubstr("--lr: expected a number behind it, got nothing"));
  EXPECT_THAT(refused({"--num-layers", "2x"}),
              HasSubstr("--num-layers: expected a whole number behind it, got \"2x\""));
  EXPECT_THAT(refused({"--swiglu", "yes"}),
              HasSubstr("--swiglu: expected nothing behind it, got \"yes\""));
  EXPECT_THAT(refused({"--data-path"}), HasSubstr("--data-path: expected texts behind it"));
  EXPECT_THAT(refused({"--split", "99", "1"}), HasSubstr("got \"99 1\""));
}

TEST(MegatronCommandLine, NamesContradictions) {
  EXPECT_THAT(refused({"--fp16", "--bf16"}), AllOf(HasSubstr("--fp16"), HasSubstr("--bf16")));
  EXPECT_THAT(refused({"--global-batch-size", "8"}), HasSubstr("needs --micro-batch-size"));
  EXPECT_THAT(refused({"--micro-batch-size", "0"}), HasSubstr("--micro-batch-size is 0"));
  EXPECT_THAT(refused({"--micro-batch-size", "4", "--global-batch-size", "20"}, 2),
              HasSubstr("the nearest that are: 16 and 24"));
  EXPECT_THAT(refused({"--micro-batch-size", "4", "--global-batch-size", "2"}, 2),
              HasSubstr("the nearest that are: 8"));
  EXPECT_THAT(refused({"--tensor-model-parallel-size", "3"}, 8),
              HasSubstr("the nearest number that they divide is 9"));
}

TEST(MegatronArguments, EachFlagIsOneArguments) {
  for (const auto& [flag, name] :
       {std::pair("--disable-bias-linear", "add_bias_linear"), std::pair("--DDP-impl", "DDP_impl"),
        std::pair("--num-layers", "num_layers")}) {
    const MegatronArgument* const argument = find_megatron_flag(flag);
    ASSERT_NE(argument, nullptr) << flag;
    EXPECT_STREQ(argument->name, name);
  }
  EXPECT_EQ(find_megatron_flag("--consumed-samples"), nullptr);
  EXPECT_EQ(find_megatron_flag("--add-bias-linear"), nullptr);
  EXPECT_EQ(find_megatron_flag("num-layers"), nullptr);
}

}  // namespace
}  // namespace accelerate
