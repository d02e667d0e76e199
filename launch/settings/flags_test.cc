#include "launch/settings/settings.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

#include "absl/status/status.h"
#include "launch/settings/schema.h"

namespace accelerate::launcher::settings {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

struct Parsed {
  TypedFlags typed;
  std::vector<std::string> program;
  std::string error;
};

Parsed parse(std::vector<std::string> args) {
  Parsed parsed;
  CLI::App app;
  declare_flags(app, parsed.typed);
  absl::StatusOr<LaunchWords> words = split_launch_words(app, args);
  if (!words.ok()) {
    parsed.error = std::string(words.status().message());
    EXPECT_THAT(parsed.error, Not(HasSubstr("\n")));
    return parsed;
  }
  std::reverse(words->options.begin(), words->options.end());
  app.parse(words->options);
  parsed.program = words->program;
  return parsed;
}

std::string error_of(std::vector<std::string> args) { return parse(std::move(args)).error; }

TEST(Flags, TakeBothSpellingsAndBothWaysToGiveAValue) {
  for (std::vector<std::string> args : {std::vector<std::string>{"--num_processes", "4", "train"},
                                        {"--num-processes", "4", "train"},
                                        {"--num_processes=4", "train"},
                                        {"--num-processes=2", "--num_processes=4", "train"}}) {
    EXPECT_THAT(parse(args).typed["num_processes"].back(), "4") << args[0];
  }
  EXPECT_THAT(parse({"-q", "-m", "-t", "3", "x"}).typed["tee"], ElementsAre("3"));
  EXPECT_THAT(parse({"--vm", "a", "--vm=b", "x"}).typed["vm"], ElementsAre("a", "b"));
  EXPECT_THAT(parse({"--no-tpu-cluster", "x"}).typed["tpu_use_cluster"], ElementsAre("false"));
}

TEST(Flags, TakeTorchrunsSpellings) {
  TypedFlags typed = parse({"--nproc_per_node=2", "--nnodes", "2", "--node-rank=1", "--master_addr",
                            "h", "--master-port", "1", "train"})
                         .typed;
  EXPECT_THAT(typed["nproc_per_node"], ElementsAre("2"));
  EXPECT_THAT(typed["machine_rank"], ElementsAre("1"));
  EXPECT_THAT(typed["main_process_ip"], ElementsAre("h"));
  EXPECT_THAT(typed["main_process_port"], ElementsAre("1"));
  EXPECT_THAT(parse({"--standalone", "x"}).typed["standalone"], ElementsAre("true"));
}

TEST(Flags, HelpShowsTheCommonOnesUnlessAllAreAskedFor) {
  CLI::App app;
  TypedFlags typed;
  declare_flags(app, typed);
  const auto shown = [&app] {
    int count = 0;
    for (const Setting& row : all_settings()) {
      if (!row.has_flag()) continue;
      count += app.get_option(std::string("--") + row.flag_name())->get_group().empty() ? 0 : 1;
    }
    return count;
  };
  int common = 0;
  int all = 0;
  for (const Setting& row : all_settings()) {
    common += row.is_common ? 1 : 0;
    all += row.has_flag() ? 1 : 0;
  }
  EXPECT_EQ(common, 25);
  EXPECT_EQ(shown(), common);
  EXPECT_THAT(app.help(), HasSubstr("--num_processes"));
  EXPECT_THAT(app.help(), HasSubstr("--help=all"));
  EXPECT_THAT(app.help(), Not(HasSubstr("--fsdp_version")));

  absl::StatusOr<LaunchWords> words = split_launch_words(app, {"--help=all", "train"});
  ASSERT_TRUE(words.ok()) << words.status();
  EXPECT_THROW(app.parse(words->options), CLI::CallForAllHelp);
  show_flags(app);
  EXPECT_EQ(shown(), all);
  EXPECT_THAT(app.help(), HasSubstr("--fsdp_version"));
  EXPECT_THAT(app.help(), HasSubstr("; not in this version"));
}

TEST(Flags, EndAtTheProgram) {
  EXPECT_THAT(parse({"--num_processes", "2", "train", "--help", "--num-processes", "9", "--", "",
                     "-h", "--version"})
                  .program,
              ElementsAre("train", "--help", "--num-processes", "9", "--", "", "-h", "--version"));
  EXPECT_THAT(parse({"--", "--odd-name", "--", "x"}).program, ElementsAre("--odd-name", "--", "x"));
}

TEST(Flags, NameWhatIsUnknownOrMissing) {
  EXPECT_THAT(error_of({"--bogus", "train"}), HasSubstr("unknown option --bogus"));
  EXPECT_THAT(error_of({"--num-process", "2", "t"}), HasSubstr("did you mean --num_processes?"));
  EXPECT_THAT(error_of({"--num_processes"}), HasSubstr("--num_processes needs a value"));
  EXPECT_THAT(error_of({"--simulate=", "train"}), HasSubstr("--simulate needs a value"));
  EXPECT_THAT(error_of({"--help=1", "train"}), HasSubstr("--help=1: expected all, program, "));
}

TEST(Schema, HasEveryNameOnce) {
  std::set<std::string> names;
  std::set<std::string> keys;
  int last_group = 0;
  for (const Setting& row : all_settings()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_GE(static_cast<int>(row.group), last_group) << row.name;
    last_group = static_cast<int>(row.group);
    EXPECT_STRNE(row.help, "") << row.name;
    if (row.section != Section::kTop) continue;
    EXPECT_TRUE(keys.insert(row.key_name()).second) << row.name;
  }
}

TEST(Schema, IsWhatTheDocumentationSays) {
  std::ifstream file(std::getenv("ACCELERATE_LAUNCH_OPTIONS"));
  ASSERT_TRUE(file);
  std::stringstream text;
  text << file.rdbuf();
  const std::string document = text.str();
  const size_t table = document.find("## ");
  ASSERT_NE(table, std::string::npos);
  EXPECT_EQ(document.substr(table), options_markdown())
      << "make it anew: accelerate launch --help_markdown";
}

}  // namespace
}  // namespace accelerate::launcher::settings
