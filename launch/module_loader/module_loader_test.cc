// Runs the program itself, alone and under the launcher, on a real shared object.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "accelerate/platform/child.h"
#include "accelerate/platform/host_files.h"

namespace accelerate::launcher::module_loader {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string path_in(const char* variable) {
  const char* path = std::getenv(variable);
  EXPECT_NE(path, nullptr) << variable << " is not set";
  return std::filesystem::absolute(path == nullptr ? "" : path);
}

ChildResult run(const std::string& arguments, const std::string& folder = ".") {
  return run_shell(absl::StrCat("cd '", folder, "' && exec '", path_in("ACCELERATE_RUN_MODULE"),
                                "' ", arguments))
      .value();
}

std::string module_path() { return path_in("ACCELERATE_TEST_MODULE"); }

TEST(ModuleLoader, CallsTheFunctionAsAMain) {
  const std::string module = module_path();
  const ChildResult ran = run("main_training_function " + module + " --lr 0.1 '' --help");
  EXPECT_EQ(ran.output, absl::StrCat("[", module, "][--lr][0.1][][--help] end\n"));
  EXPECT_EQ(ran.exit_code, 45);
  EXPECT_EQ(run("evaluate " + module).exit_code, 0);
}

// The launcher finds the loader by itself, where Bazel builds it.
TEST(ModuleLoader, IsStartedByTheLauncherForEachRank) {
  const std::string launch =
      absl::StrCat("'", path_in("ACCELERATE_LAUNCHER"), "' launch --cpu --num_processes 2 ");
  const std::string module = module_path();
  const ChildResult ran =
      run_shell(launch + "--module --main_training_function main_training_function " + module +
                " --lr")
          .value();
  EXPECT_EQ(ran.exit_code, 42) << ran.output;
  EXPECT_THAT(ran.output, HasSubstr(absl::StrCat("] [", module, "][--lr] end\n")));
  const ChildResult other =
      run_shell(launch + "-m --main_training_function evaluate " + module).value();
  EXPECT_EQ(other.exit_code, 0) << other.output;
}

TEST(ModuleLoader, FindsALibraryInTheWorkingDirectory) {
  const std::filesystem::path module = module_path();
  const ChildResult ran =
      run(absl::StrCat("evaluate ", module.filename().string()), module.parent_path());
  EXPECT_EQ(ran.exit_code, 0) << ran.output;
}

TEST(ModuleLoader, SaysWhatIsMissing) {
  const std::string module = module_path();
  ChildResult ran = run("f ./no/such.so");
  EXPECT_EQ(ran.exit_code, 127);
  EXPECT_THAT(ran.output, AllOf(HasSubstr("accelerate-module: cannot load ./no/such.so: "),
                                HasSubstr("No such file or directory")));
  ran = run("f libno_such_library.so");
  EXPECT_EQ(ran.exit_code, 127) << ran.output;

  ran = run("main_training_functoin " + module);
  EXPECT_EQ(ran.exit_code, 126);
  EXPECT_THAT(ran.output, AllOf(HasSubstr("undefined symbol"),
                                HasSubstr("did you mean main_training_function?")));
  ran = run("x " + module);
  EXPECT_EQ(ran.exit_code, 126);
  EXPECT_THAT(ran.output, HasSubstr("it exports evaluate, main_training_function"));
  ran = run("train " + module);
  EXPECT_EQ(ran.exit_code, 126);
  EXPECT_THAT(ran.output, HasSubstr("it has train(int, char**), a C++ function: declare it extern "
                                    "\"C\""));
}

TEST(ModuleLoader, RefusesWhatIsNoLibrary) {
  ChildResult ran = run(absl::StrCat("main '", path_in("ACCELERATE_RUN_MODULE"), "'"));
  EXPECT_EQ(ran.exit_code, 126);
  EXPECT_THAT(ran.output, HasSubstr("launch it without --module"));

  const TemporaryFolder folder;
  const std::string text = folder.path("not_a_library.so");
  std::ofstream(text) << "hello";
  ran = run(absl::StrCat("f '", text, "'"));
  EXPECT_EQ(ran.exit_code, 126);
  EXPECT_THAT(ran.output, HasSubstr("not_a_library.so: "));

  for (const char* words : {"", "f", "f ''", "'' lib.so"}) {
    EXPECT_EQ(run(words).exit_code, 2) << words;
  }
}

}  // namespace
}  // namespace accelerate::launcher::module_loader
