// A script stands for `ldd`, so that the programs of an installation load what the test says.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "accelerate/platform/host_files.h"
#include "launch/commands/commands.h"
#include "launch/commands/probe.h"
#include "launch/testing/commands/command_tester.h"

namespace accelerate::launcher::commands {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class CheckLibtorch : public ::testing::Test {
 protected:
  void SetUp() override {
    says(R"({"version": "1.2.3", "libtorch": "9.8.7", "cxx11_abi": 1})");
    launcher_ = script("bin/accelerate", "exit 0");
    program_ = script("bin/accelerate-self-test", "exit 0");
    script("bin/accelerate-plan", "exit 0");
    library_ = fs::canonical(write("torch/lib/libtorch_cpu.so", "")).string();
    script("path/ldd",
           absl::StrCat("echo 'libtorch_cpu.so => ", library_, " (0x00007f5b4ebf5000)'"));
    setenv("PATH", absl::StrCat(temporary_.path("path"), ":", path_).c_str(), /*replace=*/1);
  }
  void TearDown() override { setenv("PATH", path_.c_str(), /*replace=*/1); }

  std::string write(const std::string& name, const std::string& contents) {
    const fs::path path = temporary_.path(name);
    fs::create_directories(path.parent_path());
    std::ofstream(path) << contents;
    return path;
  }
  std::string script(const std::string& name, const std::string& line) {
    const std::string path = write(name, absl::StrCat("#!/bin/sh\n", line, "\n"));
    fs::permissions(path, fs::perms::owner_all);
    return path;
  }
  // What the installation is for.
  void says(const std::string& release) { write("share/accelerate-cpp/release.json", release); }
  // The LibTorch that the programs load.
  void is_found(const std::string& version, int abi = 1) {
    write("torch/version.py", absl::StrCat("__version__ = '", version, "'\n"));
    write("torch/share/cmake/Torch/TorchConfig.cmake",
          absl::StrCat("set(TORCH_CXX_FLAGS \"-D_GLIBCXX_USE_CXX11_ABI=", abi, "\")\n"));
  }
  absl::Status checked() const { return check_libtorch(launcher_, program_); }

  const TemporaryFolder temporary_;
  const std::string path_ = std::getenv("PATH");
  std::string launcher_;
  std::string program_;
  std::string library_;
};

TEST_F(CheckLibtorch, TakesTheOneOfTheRelease) {
  for (const char* version : {"9.8.7", "9.8.7+cpu", "9.8", "9.8.7a0+git1"}) {
    is_found(version);
    EXPECT_TRUE(checked().ok()) << version << ": " << checked();
  }
}

TEST_F(CheckLibtorch, NamesBothBeforeASymbolIsMissing) {
  for (const char* version : {"2.6.0", "9.8.6", "9.80.7", "9.9.7+cpu"}) {
    is_found(version);
    EXPECT_TRUE(absl::IsFailedPrecondition(checked())) << version;
    EXPECT_EQ(checked().message(),
              absl::StrCat("Accelerate was built with LibTorch 9.8.7 (C++11 ABI: 1), and LibTorch ",
                           version, " (C++11 ABI: 1) was found: ", library_,
                           ". Take the release of Accelerate for this LibTorch, or put the folder "
                           "of the other one first in LD_LIBRARY_PATH"));
  }
}

TEST_F(CheckLibtorch, NamesAnotherAbi) {
  is_found("9.8.7", /*abi=*/0);
  EXPECT_THAT(std::string(checked().message()),
              HasSubstr("and LibTorch 9.8.7 (C++11 ABI: 0) was found: "));
}

TEST_F(CheckLibtorch, LeavesAloneWhatIsUnknown) {
  EXPECT_TRUE(checked().ok()) << "a LibTorch that does not tell its version: " << checked();
  is_found("2.6.0");
  script("path/ldd", "exit 1");
  EXPECT_TRUE(checked().ok()) << "a machine without ldd: " << checked();
  script("path/ldd", absl::StrCat("echo 'libtorch_cpu.so => ", library_, " (0x0)'"));
  EXPECT_FALSE(checked().ok());
  for (const char* release : {"", "no JSON", "{}"}) {
    says(release);
    EXPECT_TRUE(checked().ok()) << release << ": " << checked();
  }
}

TEST_F(CheckLibtorch, StopsTheCommandsThatStartProgramsOfTheInstallation) {
  const auto planned = [&] {
    return run_command(kPlan, {"llama-7b", "--on", "1x8:h100"}, {.executable = launcher_});
  };
  is_found("9.8.7");
  EXPECT_EQ(run_command(kTest, {}, {.executable = launcher_}).exit_code, 0);
  EXPECT_EQ(planned().exit_code, 0);
  is_found("2.6.0");
  const CommandResult tested = run_command(kTest, {}, {.executable = launcher_});
  EXPECT_EQ(tested.exit_code, kExitLauncherFailed);
  EXPECT_THAT(tested.err, StartsWith("accelerate test: Accelerate was built with LibTorch 9.8.7"));
  EXPECT_EQ(tested.out, "");
  EXPECT_EQ(planned().exit_code, kExitLauncherFailed);
  EXPECT_THAT(planned().err,
              HasSubstr("accelerate plan: Accelerate was built with LibTorch 9.8.7"));
}

}  // namespace
}  // namespace accelerate::launcher::commands
