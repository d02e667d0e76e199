
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "accelerate/platform/host_files.h"
#include "launch/commands/commands.h"
#include "launch/commands/probe.h"
#include "launch/testing/commands/command_tester.h"

namespace accelerate::launcher::commands {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string plugin() {
  const char* path = std::getenv("ACCELERATE_TEST_PLUGIN");
  EXPECT_NE(path, nullptr);
  return std::filesystem::absolute(path == nullptr ? "" : path);
}

// The plug-in's behaviour when it is loaded.
class Behaviour {
 public:
  explicit Behaviour(const char* name) { setenv("ACCELERATE_TEST_PLUGIN_BEHAVIOUR", name, 1); }
  ~Behaviour() { unsetenv("ACCELERATE_TEST_PLUGIN_BEHAVIOUR"); }
};

TEST(InstallXla, SaysWhatIsThereAndHowToGetTheRest) {
  const CommandResult result = run_command(kInstallXla, {});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("libtorch_cuda.so: "), HasSubstr("libtorch_npu.so: "),
                    HasSubstr("libhabana_pytorch_plugin.so: "), HasSubstr("libmusa_python.so: "),
                    HasSubstr("libtpu.so: "), HasSubstr("to get it: ")));
}

TEST(InstallXla, TriesThePluginsThatVariablesName) {
  const CommandResult result = run_command(
      kInstallXla, {},
      {.environment = {"PJRT_NAMES_AND_LIBRARY_PATHS=mine:" + plugin() + ",gone:/no/such.so",
                       "TPU_LIBRARY_PATH=" + plugin()}});
  EXPECT_EQ(result.exit_code, 0);
  const std::string resolved = std::filesystem::canonical(plugin());
  EXPECT_THAT(result.out, HasSubstr("- mine, " + plugin() + ": loadable: " + resolved + "\n"));
  EXPECT_THAT(result.out, HasSubstr("- gone, /no/such.so: not found\n"));
  EXPECT_THAT(result.out, HasSubstr("- TPU, " + plugin() + ": loadable: "));
}

TEST(InstallXla, FailsForAPluginThatWasAskedForAndIsNone) {
  EXPECT_EQ(run_command(kInstallXla, {"--library", plugin()}).exit_code, 0);
  EXPECT_EQ(run_command(kInstallXla, {"--library", "/no/such.so"}).exit_code, 1);
  const CommandResult none = run_command(kInstallXla, {"--library", "libc.so.6"});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.out, HasSubstr("which is not a PJRT plug-in: it has no GetPjrtApi"));
}

TEST(ProbeLibrary, SurvivesWhateverALibraryDoes) {
  EXPECT_TRUE(probe_library(plugin(), "GetPjrtApi").has_symbol);
  EXPECT_FALSE(probe_library(plugin(), "GetPjrtApy").has_symbol);
  EXPECT_FALSE(probe_library(plugin()).has_symbol);
  {
    const Behaviour crash("crash");
    const LibraryProbe probe = probe_library(plugin());
    EXPECT_FALSE(probe.is_loadable);
    EXPECT_THAT(probe.error, HasSubstr("it crashes when it is loaded (Aborted"));
  }
  const Behaviour exit("exit");
  EXPECT_THAT(probe_library(plugin()).error, HasSubstr("ends the process"));
}

TEST(OutputOf, IsWhatAProgramSays) {
  EXPECT_EQ(output_of({"echo", "a", "b"}), "a b\n");
  EXPECT_EQ(output_of({"false"}), std::nullopt);
  EXPECT_EQ(output_of({"no-such-program-here"}), std::nullopt);
}

TEST(ProbeTorchLibrary, LooksWhereTheVariablesPoint) {
  const TemporaryFolder folder;
  const std::filesystem::path root = folder.path();
  std::filesystem::create_directories(root / "lib/python3.99/site-packages/torch/lib");
  std::filesystem::create_directories(root / "archive/lib");
  const std::filesystem::path in_package =
      root / "lib/python3.99/site-packages/torch/lib/libtorch_none.so";
  std::filesystem::copy_file(plugin(), in_package);
  EXPECT_FALSE(probe_torch_library("libtorch_none.so", {}).is_loadable);
  EXPECT_EQ(probe_torch_library("libtorch_none.so", {"VIRTUAL_ENV=" + folder.path()}).path,
            in_package);
  // A library that is there and cannot be loaded is named.
  std::ofstream(root / "archive/lib/libtorch_none.so") << "no library";
  const LibraryProbe broken =
      probe_torch_library("libtorch_none.so", {"LIBTORCH=" + (root / "archive").string()});
  EXPECT_FALSE(broken.is_loadable);
  EXPECT_EQ(broken.path, root / "archive/lib/libtorch_none.so");
  EXPECT_THAT(broken.error, Not(HasSubstr("cannot open shared object file")));
}

}  // namespace
}  // namespace accelerate::launcher::commands
