#include "launch/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"

namespace accelerate::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

LaunchOptions parsed(std::vector<std::string> args) {
  absl::StatusOr<CommandLine> result = parse_command_line(args);
  EXPECT_TRUE(result.ok()) << result.status();
  if (!result.ok() || !std::holds_alternative<LaunchOptions>(*result)) return {};
  return std::get<LaunchOptions>(*result);
}

std::string text_of(std::vector<std::string> args) {
  absl::StatusOr<CommandLine> result = parse_command_line(args);
  EXPECT_TRUE(result.ok()) << result.status();
  if (!result.ok() || !std::holds_alternative<InformationalText>(*result)) return "";
  return std::get<InformationalText>(*result).text;
}

// The message of the error that `args` must lead to.
std::string error_of(std::vector<std::string> args) {
  absl::StatusOr<CommandLine> result = parse_command_line(args);
  EXPECT_TRUE(absl::IsInvalidArgument(result.status())) << result.status();
  std::string message(result.status().message());
  EXPECT_THAT(message, Not(HasSubstr("\n")));
  return message;
}

TEST(ParseCommandLine, DefaultsToOneProcessOnAnyPort) {
  LaunchOptions options = parsed({"launch", "train"});
  EXPECT_EQ(options.num_processes, 1);
  EXPECT_EQ(options.main_process_port, 0);
  EXPECT_FALSE(options.simulate.has_value());
  EXPECT_THAT(options.command, ElementsAre("train"));
}

TEST(ParseCommandLine, TakesBothSpellingsAndBothWaysToGiveAValue) {
  for (std::vector<std::string> args :
       {std::vector<std::string>{"launch", "--num_processes", "4", "train"},
        {"launch", "--num-processes", "4", "train"},
        {"launch", "--num_processes=4", "train"},
        {"launch", "--num-processes=2", "--num_processes=4", "train"}}) {
    EXPECT_EQ(parsed(args).num_processes, 4) << args[1];
  }
}

TEST(ParseCommandLine, LeavesEverythingAfterTheProgramAlone) {
  EXPECT_THAT(parsed({"launch", "--num_processes", "2", "train", "--help", "--num-processes", "9",
                      "--", "", "-h", "--version"})
                  .command,
              ElementsAre("train", "--help", "--num-processes", "9", "--", "", "-h", "--version"));
}

TEST(ParseCommandLine, SkipsOneDoubleDashBeforeTheProgram) {
  EXPECT_THAT(parsed({"launch", "--", "--odd-name", "--", "x"}).command,
              ElementsAre("--odd-name", "--", "x"));
}

TEST(ParseCommandLine, ReadsTheSimulatedForm) {
  LaunchOptions options =
      parsed({"launch", "--simulate", "2x4:h100", "--simulate-seed=18446744073709551615", "train"});
  EXPECT_EQ(options.simulate, "2x4:h100");
  EXPECT_EQ(parsed({"launch", "--simulate", "2x4", "--report", "out", "train"}).report, "out");
  EXPECT_EQ(options.simulate_seed, UINT64_MAX);
}

TEST(ParseCommandLine, NamesOptionValueAndRangeOfABadNumber) {
  for (const char* value : {"0", "-3", "99999999999999999999", "two", "2.5", "1025"}) {
    EXPECT_THAT(error_of({"launch", "--num-processes", value, "train"}),
                HasSubstr(std::string("--num_processes=") + value +
                          " is not a whole number from 1 to 1024"));
  }
  EXPECT_THAT(error_of({"launch", "--main_process_port=65536", "train"}), HasSubstr("0 to 65535"));
  EXPECT_THAT(error_of({"launch", "--simulate", "1x1", "--simulate_seed=-1", "train"}),
              HasSubstr("--simulate_seed=-1"));
}

TEST(ParseCommandLine, RefusesContradictions) {
  EXPECT_THAT(error_of({"launch", "--simulate", "1x2", "--num_processes", "2", "train"}),
              HasSubstr("--simulate and --num_processes exclude each other"));
  EXPECT_THAT(error_of({"launch", "--simulate", "1x2", "--main_process_port", "2", "train"}),
              HasSubstr("--main_process_port"));
  EXPECT_THAT(error_of({"launch", "--simulate_seed", "1", "train"}), HasSubstr("--simulate"));
  EXPECT_THAT(error_of({"launch", "--report", "out", "train"}),
              HasSubstr("--report has no meaning"));
}

TEST(ParseCommandLine, NamesWhatIsMissingOrUnknown) {
  EXPECT_THAT(error_of({}), HasSubstr("no command"));
  EXPECT_THAT(error_of({"lunch", "train"}), HasSubstr("unknown command lunch"));
  EXPECT_THAT(error_of({"--bogus"}), HasSubstr("unknown option --bogus"));
  EXPECT_THAT(error_of({"launch"}), HasSubstr("no program"));
  EXPECT_THAT(error_of({"launch", "--"}), HasSubstr("no program"));
  EXPECT_THAT(error_of({"launch", ""}), HasSubstr("no program"));
  EXPECT_THAT(error_of({"launch", "--num_processes"}), HasSubstr("--num_processes needs a value"));
  EXPECT_THAT(error_of({"launch", "--simulate=", "train"}), HasSubstr("--simulate needs a value"));
  EXPECT_THAT(error_of({"launch", "--bogus", "train"}), HasSubstr("unknown option --bogus"));
  EXPECT_THAT(error_of({"launch", "--help=1", "train"}), HasSubstr("--help takes no value"));
}

MergeOptions parsed_merge(std::vector<std::string> args) {
  absl::StatusOr<CommandLine> result = parse_command_line(args);
  EXPECT_TRUE(result.ok()) << result.status();
  if (!result.ok() || !std::holds_alternative<MergeOptions>(*result)) return {};
  return std::get<MergeOptions>(*result);
}

TEST(ParseCommandLine, KnowsMergeWeights) {
  MergeOptions options = parsed_merge({"merge-weights", "in", "out"});
  EXPECT_EQ(options.checkpoint_dir, "in");
  EXPECT_EQ(options.output_path, "out");
  EXPECT_FALSE(options.unsafe_serialization);
  EXPECT_FALSE(options.remove_checkpoint_dir);
  for (std::vector<std::string> args :
       {std::vector<std::string>{"merge-weights", "--remove_checkpoint_dir",
                                 "--unsafe-serialization", "in", "out"},
        {"merge-weights", "in", "out", "--unsafe_serialization", "--remove-checkpoint-dir"}}) {
    options = parsed_merge(args);
    EXPECT_EQ(options.checkpoint_dir, "in");
    EXPECT_EQ(options.output_path, "out");
    EXPECT_TRUE(options.unsafe_serialization);
    EXPECT_TRUE(options.remove_checkpoint_dir);
  }
  EXPECT_EQ(parsed_merge({"merge-weights", "--", "--in-dir", "out"}).checkpoint_dir, "--in-dir");
  EXPECT_THAT(error_of({"merge-weights"}), HasSubstr("two folders"));
  EXPECT_THAT(error_of({"merge-weights", "in"}), HasSubstr("two folders"));
  EXPECT_THAT(error_of({"merge-weights", "in", ""}), HasSubstr("two folders"));
  error_of({"merge-weights", "in", "out", "more"});
  error_of({"merge-weights", "--bogus", "in", "out"});
  EXPECT_THAT(text_of({"merge-weights", "--help"}), HasSubstr("CHECKPOINT_DIR"));
}

TEST(ParseCommandLine, AnswersHelpAndVersion) {
  EXPECT_EQ(text_of({"--version"}), std::string("accelerate ") + kVersion + "\n");
  EXPECT_THAT(text_of({"--help"}), HasSubstr("launch"));
  EXPECT_THAT(text_of({"launch", "--help"}), HasSubstr("--num_processes"));
  EXPECT_THAT(text_of({"launch", "-h", "train"}), HasSubstr("PROGRAM"));
  EXPECT_THAT(text_of({"launch", "--help"}), Not(HasSubstr("--kill_grace")));
}

}  // namespace
}  // namespace accelerate::launch
