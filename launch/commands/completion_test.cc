#include "launch/commands/commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "accelerate/platform/host_files.h"
#include "launch/commands/probe.h"
#include "launch/testing/commands/command_tester.h"

namespace accelerate::launcher::commands {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;
using Words = std::vector<std::string>;

// The words that bash itself offers for the last of these words.
class BashCompletion : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(folder_ + "/train") << "";
    const auto script = completion_script("bash", all_commands());
    ASSERT_TRUE(script.ok());
    std::ofstream(folder_ + "/script") << *script;
  }

  Words offered(const Words& typed) {
    const std::string command = absl::StrCat(
        "cd ", folder_, "; set -u; source ./script; COMP_WORDS=('", absl::StrJoin(typed, "' '"),
        "'); COMP_CWORD=", typed.size() - 1, "; _accelerate; printf '%s\\n' \"${COMPREPLY[@]}\"");
    const std::optional<std::string> said = output_of({"bash", "-c", command});
    EXPECT_TRUE(said.has_value()) << command;
    return absl::StrSplit(said.value_or(""), '\n', absl::SkipEmpty());
  }

  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
};

TEST_F(BashCompletion, OffersCommands) {
  EXPECT_THAT(offered({"accelerate", "me"}), ElementsAre("merge-weights"));
  EXPECT_THAT(offered({"accelerate", ""}).size(), all_commands().size());
}

TEST_F(BashCompletion, OffersOptionsAndTheirValues) {
  EXPECT_THAT(offered({"accelerate", "launch", "--mixed"}), ElementsAre("--mixed_precision"));
  EXPECT_THAT(offered({"accelerate", "launch", "--mixed_precision", ""}),
              UnorderedElementsAre("no", "fp16", "bf16", "fp8"));
  EXPECT_THAT(offered({"accelerate", "launch", "--mixed-precision", "b"}), ElementsAre("bf16"));
  EXPECT_THAT(offered({"accelerate", "launch", "--cpu", "--mixed_precision", "fp"}),
              UnorderedElementsAre("fp16", "fp8"));
  EXPECT_THAT(offered({"accelerate", "launch", "--config_file", "tr"}), ElementsAre("train"));
  EXPECT_THAT(offered({"accelerate", "estimate-memory", "--attn_implementation", "e"}),
              ElementsAre("eager"));
  EXPECT_THAT(offered({"accelerate", "completion", "z"}), ElementsAre("zsh"));
}

TEST_F(BashCompletion, TheProgramsWordsAreFiles) {
  EXPECT_THAT(offered({"accelerate", "launch", "--num_processes", "2", "tr"}),
              ElementsAre("train"));
  EXPECT_THAT(offered({"accelerate", "launch", "train", "--mixed"}), IsEmpty());
  EXPECT_THAT(offered({"accelerate", "launch", "train", "t"}), ElementsAre("train"));
}

TEST_F(BashCompletion, LinksAreTheirCommands) {
  EXPECT_THAT(offered({"/usr/bin/accelerate-launch", "--num_p"}), ElementsAre("--num_processes"));
  EXPECT_THAT(offered({"accelerate-merge-weights", "--rem"}),
              ElementsAre("--remove_checkpoint_dir"));
}

TEST(Completion, ForOtherShellsNamesAllCommandsAndOptions) {
  for (const char* shell : {"zsh", "fish"}) {
    const CommandResult result = run_command(kCompletion, {shell});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    for (const Command& command : all_commands()) {
      EXPECT_THAT(result.out, HasSubstr(command.name)) << shell;
    }
    EXPECT_THAT(result.out, AllOf(HasSubstr("mixed_precision"), HasSubstr("fp16 bf16 fp8"),
                                  HasSubstr("accelerate-launch")));
  }
  const std::string fish = run_command(kCompletion, {"fish"}).out;
  EXPECT_THAT(Words(absl::StrSplit(fish, '\n', absl::SkipEmpty())),
              Each(::testing::AnyOf(StartsWith("complete -c "), StartsWith("# "))));
  EXPECT_THAT(fish, HasSubstr("complete -c accelerate-launch -w 'accelerate launch'"));
  EXPECT_THAT(fish, HasSubstr("-d 'Print a script for the shell'\\''s completion.'"));
}

TEST(Completion, RefusesOtherShells) {
  EXPECT_EQ(run_command(kCompletion, {"tcsh"}).exit_code, 2);
  EXPECT_EQ(run_command(kCompletion, {}).exit_code, 2);
  EXPECT_FALSE(completion_script("tcsh", {}).ok());
}

}  // namespace
}  // namespace accelerate::launcher::commands
