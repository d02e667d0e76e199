#include "accelerate/options/options.h"

#include <map>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace accelerate::options {
namespace {

TEST(Options, StandOnceEachAndHaveAVariableOfTheirOwn) {
  std::set<std::string> names;
  std::set<std::string> variables;
  for (const Option& row : all_options()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_STRNE(row.help, "") << row.name;
    const std::string variable = row.variable_name();
    EXPECT_TRUE(variable.empty() || variables.insert(variable).second) << variable;
  }
}

TEST(Options, HaveTheVariableThatIsGivenOrFollowsFromTheName) {
  EXPECT_EQ(option("fsdp_offload_params").variable_name(), "FSDP_OFFLOAD_PARAMS");
  EXPECT_EQ(option("zero_stage").variable_name(), "ACCELERATE_DEEPSPEED_ZERO_STAGE");
  EXPECT_EQ(option("gradient_clipping").variable_name(), "ACCELERATE_GRADIENT_CLIPPING");
  EXPECT_EQ(option("dynamo_mode").variable_name(), "ACCELERATE_DYNAMO_MODE");
  EXPECT_EQ(option("deepspeed_hostfile").variable_name(), "");
}

TEST(Options, AreFoundByTheFieldThatTheyFill) {
  EXPECT_EQ(find_field(Section::kFsdp, "sharding_strategy"), &option("fsdp_sharding_strategy"));
  EXPECT_EQ(find_field(Section::kFsdp, "cpu_offload"), &option("fsdp_offload_params"));
  EXPECT_EQ(find_field(Section::kFsdp, "offload_params"), nullptr);
  EXPECT_EQ(find_field(Section::kDeepSpeed, "gradient_accumulation_steps"),
            &option("gradient_accumulation_steps"));
}

// The names in "a=1&!b" and, behind an @, in choices.
std::vector<std::string> names_in(absl::string_view condition) {
  std::vector<std::string> names;
  for (absl::string_view part : absl::StrSplit(condition, '&')) {
    absl::ConsumePrefix(&part, "!");
    part = part.substr(0, part.find('='));
    names.emplace_back(absl::StripSuffix(part, "!"));
  }
  return names;
}

TEST(Options, AskUnderConditionsOnOptionsThatThereAre) {
  for (const Option& row : all_options()) {
    std::vector<std::string> names;
    if (row.question.when != nullptr) names = names_in(row.question.when);
    for (const absl::string_view choice :
         absl::StrSplit(row.question.choices != nullptr ? row.question.choices : "", '|')) {
      const size_t at = choice.find('@');
      if (at == choice.npos) continue;
      for (const std::string& name : names_in(choice.substr(at + 1))) names.push_back(name);
    }
    for (const std::string& name : names) {
      EXPECT_NE(find_option(name), nullptr) << row.name << " asks about " << name;
    }
    EXPECT_TRUE(row.question.text != nullptr || names.empty()) << row.name;
  }
}

TEST(Options, KnowTheKeysOfOlderFiles) {
  std::map<std::string, std::string> old_keys;
  for (const Option& row : all_options()) {
    if (row.old_keys != nullptr) old_keys[row.name] = row.old_keys;
  }
  const std::map<std::string, std::string> kOldKeys = {
      {"fp8_amax_compute_algo", "amax_compute_algorithm"},
      {"fp8_amax_history_len", "amax_history_length"},
      {"fp8_opt_level", "optimization_level"},
      {"fsdp_backward_prefetch", "fsdp_backward_prefetch_policy|backward_prefetch_policy"},
      {"fsdp_transformer_layer_cls_to_wrap", "fsdp_transformer_cls_to_wrap"},
      {"megatron_lm_sequence_parallelism", "megatron_lm_sequence_parallel"}};
  EXPECT_EQ(old_keys, kOldKeys);
  const Option& row = option("fsdp_backward_prefetch");
  EXPECT_TRUE(row.has_old_key("backward_prefetch_policy"));
  EXPECT_TRUE(row.has_old_key("fsdp_backward_prefetch_policy"));
  EXPECT_FALSE(row.has_old_key("fsdp_backward_prefetch"));
  EXPECT_FALSE(option("fsdp_version").has_old_key(""));
}

}  // namespace
}  // namespace accelerate::options
