#include "launch/commands/commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include <CLI/CLI.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "accelerate/platform/host_files.h"
#include "launch/testing/commands/command_tester.h"
#include "simulator/hardware/cluster_spec.h"
#include "simulator/hardware/presets.h"

namespace accelerate::launcher::commands {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string help_of(const Command& command, int columns) {
  CLI::App app(command.summary, absl::StrCat("accelerate ", command.name));
  const RunCommand ignored = command.declare(app);
  return help_text(app, columns);
}

TEST(Help, FitsItsColumnsUnlessAWordDoesNot) {
  for (const int columns : {60, 100}) {
    std::string all = overview_text(columns);
    for (const Command& command : all_commands()) all += help_of(command, columns);
    for (const absl::string_view line : absl::StrSplit(all, '\n')) {
      const bool is_usage = absl::StartsWith(line, "Usage: ");
      EXPECT_TRUE(is_usage || static_cast<int>(line.size()) <= columns) << line;
      EXPECT_FALSE(absl::EndsWith(line, " ")) << line;
    }
  }
}

TEST(Help, HasGroupsWithTheChoicesOfValues) {
  EXPECT_THAT(overview_text(100), AllOf(HasSubstr("\nRun a program:\n  launch "),
                                        HasSubstr("\nTPUs and other devices:\n")));
  EXPECT_THAT(help_of(kLaunch, 100),
              AllOf(HasSubstr("\nMachines:\n"), HasSubstr("\n  -q, --quiet "),
                    HasSubstr("\nUsage: accelerate launch [OPTIONS] PROGRAM [ARGS...]\n")));
  EXPECT_THAT(help_of(kEstimateMemory, 100),
              AllOf(HasSubstr("--library_name {timm,transformers,diffusers}\n"),
                    HasSubstr("  --zero_stage N "), HasSubstr("model_name "),
                    HasSubstr("(required)"), Not(HasSubstr("INT in ["))));
  EXPECT_THAT(help_of(kSimulate, 100), AllOf(HasSubstr("\nSimulation:\n"), HasSubstr("--list"),
                                             Not(HasSubstr("\nMachines:\n"))));
}

TEST(Help, IsThatOfAParsedSubcommand) {
  CLI::App app(kConfig.summary, "accelerate config");
  const RunCommand ignored = kConfig.declare(app);
  EXPECT_THROW(app.parse("default --help"), CLI::CallForHelp);
  EXPECT_THAT(help_text(app, 100),
              AllOf(StartsWith("Write a configuration for this machine alone.\n"),
                    HasSubstr("Usage: accelerate config default [OPTIONS]")));
}

TEST(Man, HasEveryOptionOfEveryCommand) {
  const std::vector<ManualPage> pages = manual_pages();
  ASSERT_EQ(pages.size(), all_commands().size() + 1);
  for (size_t i = 0; i < all_commands().size(); ++i) {
    const Command& command = all_commands()[i];
    const ManualPage& page = pages[i + 1];
    EXPECT_EQ(page.file, absl::StrCat("accelerate-", command.name, ".1"));
    CLI::App app;
    const RunCommand ignored = command.declare(app);
    for (const CLI::Option* option : app.get_options()) {
      // Launch hides what is not common, and simulate what it shares with launch.
      if (option->get_group().empty() && command.name != kLaunch.name) continue;
      for (const std::string& name : option->get_lnames()) {
        const bool is_internal =
            name == "help_all" || name == "help_markdown" || name == "print_config_all";
        EXPECT_EQ(absl::StrContains(page.text, absl::StrCat("\\-\\-", name)), !is_internal)
            << command.name << " " << name;
      }
    }
  }
}

TEST(Man, PagesHaveNoRequestsButTheirOwn) {
  for (const ManualPage& page : manual_pages()) {
    EXPECT_THAT(page.text, StartsWith(".TH ACCELERATE"));
    for (const absl::string_view line : absl::StrSplit(page.text, '\n')) {
      EXPECT_FALSE(absl::StartsWith(line, "'")) << line;
      if (!absl::StartsWith(line, ".")) continue;
      const std::string request(line.substr(0, line.find(' ')));
      EXPECT_THAT(request, AnyOf(Eq(".TH"), Eq(".SH"), Eq(".TP"), Eq(".BR"))) << line;
    }
  }
}

TEST(Man, PrintsAPageOrWritesAll) {
  EXPECT_THAT(run_command(kMan, {"launch"}).out, HasSubstr("num_processes"));
  EXPECT_THAT(run_command(kMan, {}).out, HasSubstr("accelerate\\-launch"));
  const CommandResult unknown = run_command(kMan, {"lunch"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("unknown command lunch; did you mean launch?"));
  EXPECT_EQ(run_command(kMan, {"launch", "--output_dir", "x"}).exit_code, 2);
  const TemporaryFolder folder;
  EXPECT_EQ(run_command(kMan, {"--output_dir", folder.path("man1")}).exit_code, 0);
  for (const ManualPage& page : manual_pages()) {
    std::ifstream file(folder.path("man1/" + page.file));
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), page.text) << page.file;
  }
  const CommandResult bad = run_command(kMan, {"--output_dir", "/dev/null/x"});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_THAT(bad.err, HasSubstr("/dev/null/x"));
}

TEST(SimulateList, NamesWhatAClusterMayHave) {
  const CommandResult list = run_command(kSimulate, {"--list"});
  EXPECT_EQ(list.exit_code, 0);
  std::string keys;
  int examples = 0;
  for (const std::string& device : simulator::device_names()) {
    EXPECT_THAT(list.out, HasSubstr(absl::StrCat("\n  ", device, " ")));
  }
  const std::vector<std::string> parts = absl::StrSplit(list.out, "\nKeys:\n");
  for (const absl::string_view line : absl::StrSplit(parts.at(1), '\n', absl::SkipEmpty())) {
    const absl::string_view example = line.substr(line.rfind(' ') + 1);
    const absl::string_view key = absl::StripLeadingAsciiWhitespace(line);
    EXPECT_EQ(key.substr(0, key.find(' ')), example.substr(0, example.find('='))) << line;
    EXPECT_TRUE(simulator::ClusterSpec::parse(absl::StrCat("2x4:h100,", example)).ok()) << line;
    ++examples;
  }
  // The parser names all its keys.
  const std::string error(simulator::ClusterSpec::parse("2x4:h100,zzzzzz=1").status().message());
  // One comma is the topology's; the list has one less than names.
  const absl::string_view named = absl::string_view(error).substr(0, error.find(')'));
  EXPECT_EQ(std::count(named.begin(), named.end(), ','), examples) << error;
}

}  // namespace
}  // namespace accelerate::launcher::commands
