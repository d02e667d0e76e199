
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/platform/host_files.h"
#include "launch/commands/commands.h"
#include "launch/commands/probe.h"
#include "launch/testing/commands/command_tester.h"

namespace accelerate::launcher::commands {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class Env : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& contents = "") {
    const fs::path path = fs::path(folder_) / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << contents;
    return path;
  }

  CommandResult run(std::vector<std::string> words = {},
                    const std::string& executable = "/opt/bin/accelerate") {
    return run_command(kEnv, std::move(words),
                       {.environment = {"HF_HOME=" + folder_}, .executable = executable});
  }

  // An installation whose self-test, which stands beside the program, says these versions. Returns
  // the program.
  std::string installation(const std::string& versions) {
    write("bin/accelerate-self-test",
          "#!/bin/sh\n[ \"$*\" = --versions ] || exit 1\necho '" + versions + "'\n");
    fs::permissions(folder_ + "/bin/accelerate-self-test", fs::perms::owner_all);
    return folder_ + "/bin/accelerate";
  }

  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
};

TEST_F(Env, SaysWhatTheMachineIs) {
  const CommandResult result = run();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, AllOf(HasSubstr("- `Accelerate` version: "),
                                HasSubstr("- Platform: Linux-"), HasSubstr("- Compiler: "),
                                HasSubstr("C++20"), HasSubstr("- LibTorch version: "),
                                HasSubstr("- MPI: "), HasSubstr("- hwloc: "), HasSubstr(" usable"),
                                HasSubstr("- `accelerate` executable: /opt/bin/accelerate\n")));
  EXPECT_THAT(result.out, HasSubstr("default config: not found (" + folder_));
  EXPECT_GT(memory_bytes(), 1 << 20);
}

TEST_F(Env, ShowsTheConfigurationOrWhatIsWrongWithIt) {
  write("accelerate/default_config.yaml",
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nnum_processes: 3\n");
  EXPECT_THAT(run().out, HasSubstr("\n\t- num_processes: 3\n"));
  const std::string bad = write("bad.yaml", "distributed_type: NO\nnum_processs: 3\n");
  const CommandResult result = run({"--config_file", bad});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, AllOf(HasSubstr("config passed: "), HasSubstr("num_processs")));
}

TEST_F(Env, PrintsTheSameFactsAsJson) {
  write("accelerate/default_config.yaml", "distributed_type: MULTI_CPU\nnum_processes: 3\n");
  const auto report = nlohmann::json::parse(run({"--json"}).out);
  EXPECT_EQ(report["executable"], "/opt/bin/accelerate");
  EXPECT_EQ(report["config"]["values"]["num_processes"], 3);
  EXPECT_TRUE(report["config"]["error"].is_null());
  EXPECT_GT(report["memory_bytes"], 1 << 20);
  EXPECT_TRUE(report["backends"].is_null()) << "there is no self-test at /opt/bin";
  const auto bad = nlohmann::json::parse(
      run({"--json", "--config_file", write("bad.yaml", "distributed_type: NO\nnum_processs: 3\n")})
          .out);
  EXPECT_TRUE(bad["config"]["values"].is_null());
  EXPECT_THAT(bad["config"]["error"].get<std::string>(), HasSubstr("num_processs"));
}

TEST_F(Env, TellsTheHwlocThatProgramsAreLinkedWith) {
  const std::string executable = installation(R"({"libtorch": "9.8.7", "hwloc": "2.7.1"})");
  EXPECT_THAT(run({}, executable).out, HasSubstr("\n- hwloc: API 2.7.1\n"));
  EXPECT_EQ(nlohmann::json::parse(run({"--json"}, executable).out)["hwloc"], "API 2.7.1");
  EXPECT_THAT(run().out, HasSubstr("\n- hwloc: unknown: accelerate-self-test"));
  EXPECT_TRUE(nlohmann::json::parse(run({"--json"}).out)["hwloc"].is_null());
}

TEST_F(Env, TheVersionTellsLibTorchAndTheBackendsOfTheInstalledPrograms) {
  std::istringstream in;
  std::ostringstream out;
  Invocation invocation{in, out, out, {}, false};
  invocation.executable = installation(R"({"libtorch": "9.8.7", "backends": ["gloo", "mpi"]})");
  const std::string text = version_text(invocation);
  EXPECT_THAT(text, AllOf(StartsWith("accelerate "), HasSubstr("\nLibTorch "),
                          HasSubstr("\nBackends: gloo, mpi\n")));
  invocation.executable = "/nowhere/accelerate";
  EXPECT_THAT(version_text(invocation), HasSubstr("\nBackends: unknown: accelerate-self-test"));
}

TEST_F(Env, CountsDevicesByTheirFiles) {
  EXPECT_THAT(device_texts(folder_), IsEmpty());
  for (const char* name : {"nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "davinci0"}) {
    write(std::string("dev/") + name);
  }
  EXPECT_THAT(device_texts(folder_), ElementsAre("2 x NVIDIA GPU", "1 x Ascend NPU"));
  write("proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t NVIDIA H200\nIRQ: 1\n");
  write("proc/driver/nvidia/gpus/0000:02:00.0/information", "Model: \t\t NVIDIA H200\n");
  EXPECT_THAT(device_texts(folder_), ElementsAre("2 x NVIDIA H200", "1 x Ascend NPU"));
}

// As launch counts them: by the makers of the render nodes, AMD's only with the compute driver.
TEST_F(Env, CountsRenderNodesByTheirMakers) {
  int number = 128;
  for (const char* maker : {"0x1002", "0x8086", "0x1002", "0x1a03"}) {
    const std::string node = absl::StrCat("renderD", number++);
    write(absl::StrCat("dev/dri/", node));
    write(absl::StrCat("sys/class/drm/", node, "/device/vendor"), absl::StrCat(maker, "\n"));
  }
  EXPECT_THAT(device_texts(folder_), ElementsAre("1 x Intel GPU"));
  write("dev/kfd");
  EXPECT_THAT(device_texts(folder_), ElementsAre("2 x AMD GPU", "1 x Intel GPU"));
}

TEST_F(Env, FindsTheLibraryThatAProgramLinks) {
  const std::string library = linked_library(executable_path(), "libc.so");
  EXPECT_TRUE(fs::is_regular_file(library)) << library;
  EXPECT_THAT(library, HasSubstr("/libc.so"));
  EXPECT_EQ(linked_library(executable_path(), "libnone.so"), "");
  EXPECT_EQ(linked_library(folder_ + "/none", "libc.so"), "");
  EXPECT_EQ(linked_library(write("text", "no program"), "libc.so"), "");
}

TEST_F(Env, FindsTheVersionBesideTheLibrary) {
  EXPECT_EQ(libtorch_version("/usr/lib/libtorch_cpu.so.2.6.0"), "2.6.0");
  const std::string library = write("torch/lib/libtorch_cpu.so");
  EXPECT_EQ(libtorch_version(library), "");
  write("torch/version.py", "import x\n__version__ = '2.7.1+cu128'\n");
  EXPECT_EQ(libtorch_version(library), "2.7.1+cu128");
  write("torch/build-version", "2.8.0+cpu\n");
  EXPECT_EQ(libtorch_version(library), "2.8.0+cpu");
}

}  // namespace
}  // namespace accelerate::launcher::commands
