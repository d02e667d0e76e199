#include "launch/commands/commands.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "launch/settings/settings.h"

namespace accelerate::launch::commands {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Answer {
  int exit_code = 0;
  std::string out;
  std::string err;
};

// The command as main calls it; nothing is started.
Answer launch(std::vector<std::string> args) {
  CLI::App app;
  const RunCommand run = kLaunch.declare(app);
  absl::StatusOr<settings::LaunchWords> words = settings::split_launch_words(app, args);
  if (!words.ok()) return {kExitBadCommandLine, "", std::string(words.status().message())};
  std::reverse(words->options.begin(), words->options.end());
  app.parse(words->options);
  std::istringstream in;
  std::ostringstream out;
  std::ostringstream err;
  Invocation invocation{in, out, err, {"HF_HOME=/nowhere", "PATH=/nowhere"}, false, words->program};
  const int exit_code = run(invocation);
  return {exit_code, out.str(), err.str()};
}

TEST(Launch, ShowsThePlan) {
  const Answer answer =
      launch({"--num_processes", "2", "--dry-run", "train", "--help", "--", "-x", ""});
  EXPECT_EQ(answer.exit_code, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("program: train --help -- -x ''\nranks on this machine: 2\n"));
  EXPECT_EQ(answer.err, "");
}

TEST(Launch, LeavesTheProgramsWordsAsTheyAre) {
  const Answer answer = launch({"--dry_run", "train", "--lrs", "[1,2,3]", "[]", "{}", "%%"});
  EXPECT_EQ(answer.exit_code, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("program: train --lrs '[1,2,3]' '[]' '{}' %%\n"));
  EXPECT_THAT(launch({"--dry_run", "--", "[train]"}).out, HasSubstr("program: '[train]'\n"));
}

TEST(Launch, ShowsEachSettingAndWhereItCameFrom) {
  const Answer answer = launch({"--print_config", "--num_processes=2"});
  EXPECT_EQ(answer.exit_code, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("num_processes = 2  (flag: --num_processes)\n"));
  EXPECT_THAT(answer.out, HasSubstr("mixed_precision = no  (default)\n"));
}

TEST(Launch, EndsWithTwoForABadCommandLine) {
  EXPECT_THAT(launch({}).err, HasSubstr("no program given"));
  EXPECT_THAT(launch({"--"}).err, HasSubstr("no program given"));
  EXPECT_THAT(launch({""}).err, HasSubstr("no program given"));
  EXPECT_THAT(launch({"--config_file", "/nowhere/x", "t"}).err, HasSubstr("/nowhere/x"));
  for (std::vector<std::string> args :
       {std::vector<std::string>{}, {"--bogus", "t"}, {"--cpu", "--multi_gpu", "t"}}) {
    EXPECT_EQ(launch(args).exit_code, kExitBadCommandLine);
  }
}

TEST(Launch, NamesTheToolThatIsMissing) {
  const std::string path = absl::StrCat(testing::TempDir(), "/sagemaker.yaml");
  std::ofstream(path) << "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: 'NO'\n"
                         "ec2_instance_type: t\niam_role_name: r\nimage_uri: i\n";
  const Answer job = launch({absl::StrCat("--config_file=", path), "train"});
  EXPECT_EQ(job.exit_code, kExitLauncherFailed);
  EXPECT_THAT(job.err, HasSubstr("aws sagemaker create-training-job"));
  EXPECT_THAT(launch({absl::StrCat("--config_file=", path), "--dry_run", "train"}).out,
              StartsWith("{\n  \"TrainingJobName\""));
  EXPECT_EQ(launch({"no_such_program"}).exit_code, kExitNotFound);
}

TEST(VariableFile, KeepsWhatOthersWrote) {
  const std::string path = absl::StrCat(testing::TempDir(), "/variables");
  std::ofstream(path) << "A=1\nMINE=old\n";
  ASSERT_TRUE(update_variable_file(path, {"MINE=new", "B=2"}).ok());
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_EQ(text.str(), "A=1\nMINE=new\nB=2\n");
  EXPECT_FALSE(update_variable_file("/nowhere/x", {"A=1"}).ok());
}

}  // namespace
}  // namespace accelerate::launch::commands
