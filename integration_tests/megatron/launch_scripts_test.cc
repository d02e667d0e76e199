// Command lines of public scripts of Megatron-LM (data/launch_scripts.json, whose variables have
// values that fit): each flag is used, has no effect, or is refused by name.
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_join.h"
#include "accelerate/config/megatron_arguments.h"
#include "accelerate/config/megatron_command_line.h"
#include "accelerate/platform/environment.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using Texts = std::vector<std::string>;

struct Script {
  std::string name;
  int64_t ranks = 0;
  int64_t num_micro_batches = 0;
  std::vector<Texts> arguments;  // a flag, and what stands behind it
  Texts without_effect;
  Texts refused;
};

std::vector<Script> scripts() {
  std::ifstream file("integration_tests/megatron/data/launch_scripts.json");
  std::vector<Script> scripts;
  for (const auto& each : nlohmann::json::parse(file)) {
    scripts.push_back({.name = each.at("repository").get<std::string>() + "/" +
                               each.at("script").get<std::string>(),
                       .ranks = each.at("ranks").get<int64_t>(),
                       .num_micro_batches = each.at("num_micro_batches").get<int64_t>(),
                       .arguments = each.at("arguments").get<std::vector<Texts>>(),
                       .without_effect = each.at("without_effect").get<Texts>(),
                       .refused = each.at("refused").get<Texts>()});
  }
  return scripts;
}

bool contains(const Texts& texts, const std::string& text) {
  return std::ranges::count(texts, text) > 0;
}

// Those of the flags that are wanted.
template <typename Wanted>
Texts arguments_of(const Script& script, const Wanted& wanted) {
  Texts all;
  for (const Texts& each : script.arguments) {
    if (wanted(each.front())) all.insert(all.end(), each.begin(), each.end());
  }
  return all;
}

TEST(LaunchScripts, NameAllFlagsThatAreRefused) {
  const std::vector<Script> all = scripts();
  ASSERT_EQ(all.size(), 20U);
  for (const Script& script : all) {
    const Texts arguments = arguments_of(script, [](const std::string& /*flag*/) { return true; });
    EXPECT_THAT(
        value_error_of([&] { read_megatron_command_line(arguments, {.num_ranks = script.ranks}); }),
        HasSubstr("nothing here reads " + absl::StrJoin(script.refused, ", ") + ";"))
        << script.name;
  }
}

TEST(LaunchScripts, UseAllOtherFlagsThatHaveAnEffect) {
  for (const Script& script : scripts()) {
    const Texts arguments = arguments_of(
        script, [&](const std::string& flag) { return !contains(script.refused, flag); });
    const MegatronCommandLine line =
        read_megatron_command_line(arguments, {.num_ranks = script.ranks});
    EXPECT_THAT(line.without_effect, ElementsAreArray(script.without_effect)) << script.name;
    const MegatronLMPlugin plugin = resolve(line.plugin, Environment());
    EXPECT_EQ(plugin.num_micro_batches, script.num_micro_batches) << script.name;
    for (const Texts& each : script.arguments) {
      if (contains(script.refused, each.front()) || contains(script.without_effect, each.front())) {
        continue;
      }
      const MegatronArgument* const argument = find_megatron_flag(each.front());
      ASSERT_NE(argument, nullptr) << script.name << ": " << each.front();
      EXPECT_TRUE(plugin.megatron_lm_default_args.contains(argument->name))
          << script.name << ": " << each.front();
    }
  }
}

}  // namespace
}  // namespace accelerate
