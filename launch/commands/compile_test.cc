// The command around the program that records and the Python that compiles; shell scripts stand for
// both.
#include <sys/stat.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/compile/packages/package.h"
#include "accelerate/platform/host_files.h"
#include "launch/commands/commands.h"
#include "launch/testing/commands/command_tester.h"

namespace accelerate::launcher::commands {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Compile : public ::testing::Test {
 protected:
  // A program of these lines.
  std::string script(const std::string& name, const std::string& lines) const {
    const std::string path = folder_.path(name);
    std::ofstream(path) << "#!/bin/sh\n" << lines << "\n";
    chmod(path.c_str(), 0755);
    return path;
  }
  std::string text(const std::string& name) const {
    std::stringstream contents;
    contents << std::ifstream(folder_.path(name)).rdbuf();
    return contents.str();
  }

  CommandResult compile(std::vector<std::string> words, const std::string& accelerate = "") const {
    return run_command(kCompile, std::move(words),
                       {.environment = {"ACCELERATE_COMPILE_CACHE=" + cache(), "PATH=/usr/bin:/bin",
                                        "ACCELERATE_COMPILE_RECORD=false"},
                        .executable = accelerate});
  }
  std::string cache() const { return folder_.path("regions"); }

  // A region that was recorded; its folder.
  std::string record(const std::string& region, const std::string& release = "2.6.0") const {
    const RegionRequest request = {.libtorch = release, .text = region};
    EXPECT_TRUE(write_region(cache(), request).ok());
    return cache() + "/" + release + "/" + region_id(request);
  }
  // Gives each region of the cache, or of a release, what counts as a package in a list.
  std::string python(const std::string& releases = "*") const {
    return script("python", "head -n 1 \"$1\" >" + folder_.path("first_line") +
                                "; for each in \"$2\"/" + releases +
                                "/*; do echo code >$each/forward.so; "
                                "echo '{\"format\":2}' >$each/package.json; done");
  }

  const TemporaryFolder folder_;
};

TEST_F(Compile, RecordsAProgramAndCompilesWhatItRecorded) {
  const std::string region = record("{\"op\":1}\n");
  const std::string accelerate =
      script("accelerate", "echo \"$ACCELERATE_COMPILE_RECORD $*\" >" + folder_.path("called"));
  const CommandResult done =
      compile({"--python", python(), "--num_processes", "2", "./train", "--list", "--epochs", "3"},
              accelerate);
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_EQ(text("called"),
            "true launch --dynamo_backend inductor --num_processes 2 ./train --list --epochs 3\n");
  EXPECT_EQ(text("first_line"), "#!/usr/bin/env python3\n") << "the script that comes along";
  EXPECT_EQ(done.out, "1 region compiled into " + cache() + "\n");
  EXPECT_THAT(compile({"--list"}).out,
              AllOf(HasSubstr("LibTorch 2.6.0  1 operators"), HasSubstr("1 region in ")));
  // Nothing is compiled twice.
  const CommandResult again = compile({"--python", "/no/such/python"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("no region in "));
}

TEST_F(Compile, KeepsABackendThatIsNamed) {
  const std::string accelerate = script("accelerate", "echo \"$*\" >" + folder_.path("called"));
  EXPECT_EQ(compile({"--dynamo_backend=inductor", "./train"}, accelerate).exit_code, 0);
  EXPECT_EQ(text("called"), "launch --dynamo_backend=inductor ./train\n");
  EXPECT_EQ(compile({"--dynamo-backend", "inductor", "./train"}, accelerate).exit_code, 0);
  EXPECT_EQ(text("called"), "launch --dynamo-backend inductor ./train\n");
}

TEST_F(Compile, FailsAsTheProgramFails) {
  record("{\"op\":1}\n");
  const CommandResult failed =
      compile({"--python", python(), "./train"}, script("accelerate", "exit 7"));
  EXPECT_EQ(failed.exit_code, 7);
  EXPECT_THAT(failed.err, HasSubstr("failed with exit code 7 while its regions were recorded"));
  EXPECT_EQ(text("first_line"), "") << "nothing is compiled";
}

TEST_F(Compile, SaysWhatIsMissingWithoutTorch) {
  record("{\"op\":1}\n");
  record("{\"op\":2}\n");
  const CommandResult without = compile({"--python", script("python", "exit 3")});
  EXPECT_EQ(without.exit_code, 1);
  EXPECT_THAT(without.err, AllOf(HasSubstr("2 regions in "), HasSubstr("has no torch of that"),
                                 HasSubstr("--python names another one")));
  const CommandResult absent = compile({"--python", "/no/such/python"});
  EXPECT_EQ(absent.exit_code, 1);
  EXPECT_THAT(absent.err, HasSubstr("/no/such/python cannot be started"));
  EXPECT_THAT(compile({"--list"}).out, HasSubstr("no package"));
}

// A torch that was installed without what it depends on.
TEST_F(Compile, SaysWhyTorchCannotBeImported) {
  record("{\"op\":1}\n");
  const std::string stub = folder_.path("stub");
  const std::string lines = "mkdir -p " + stub + "/torch; echo 'import no_such' >" + stub +
                            "/torch/__init__.py; PYTHONPATH=" + stub + " python3 \"$@\" >" +
                            folder_.path("said");
  const CommandResult without = compile({"--python", script("python", lines)});
  EXPECT_EQ(without.exit_code, 1);
  EXPECT_THAT(without.err, HasSubstr("or cannot import it (see above)"));
  EXPECT_THAT(text("said"), AllOf(HasSubstr("1 regions have no package"),
                                  HasSubstr("cannot import torch (No module named 'no_such')")));
}

TEST_F(Compile, FailsWhereARegionWasNotCompiled) {
  record("{\"op\":1}\n");
  const CommandResult failed = compile({"--python", script("python", "exit 0")});
  EXPECT_EQ(failed.exit_code, 1);
  EXPECT_THAT(failed.err, HasSubstr("1 region in "));
}

// After an upgrade the texts of the release before stay, and no Python has both.
TEST_F(Compile, SkipsWhatEarlierReleasesLeft) {
  record("{\"op\":1}\n", "2.6.0");
  record("{\"op\":1}\n", "2.10.0");
  const std::string skipped = "1 region of earlier releases of LibTorch in " + cache() +
                              " without a package: skipped; `accelerate compile --clear` empties "
                              "the cache\n";
  const CommandResult done = compile({"--python", python("2.10.0")});
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_EQ(done.out, "1 region compiled into " + cache() + "\n" + skipped);
  const CommandResult again = compile({"--python", script("python", "exit 3")});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(again.out, skipped);
  const CommandResult without = compile({"--python", "/no/such/python"});
  EXPECT_EQ(without.exit_code, 0) << without.err;
  // A Python that still has the earlier release compiles what that left.
  EXPECT_EQ(compile({"--python", python("2.6.0")}).out, "1 region compiled into " + cache() + "\n");
  record("{\"op\":2}\n", "2.10.0");
  EXPECT_EQ(compile({"--python", script("python", "exit 3")}).exit_code, 1);
}

TEST_F(Compile, ClearsTheCache) {
  record("{\"op\":1}\n");
  const CommandResult cleared = compile({"--clear"});
  EXPECT_EQ(cleared.exit_code, 0) << cleared.err;
  EXPECT_THAT(cleared.out, HasSubstr("1 region removed from "));
  EXPECT_THAT(compile({"--list"}).out, Not(HasSubstr("operators")));
  EXPECT_EQ(compile({"--clear", "./train"}).exit_code, 2);
  EXPECT_EQ(compile({"--clear", "--list"}).exit_code, 2);
}

TEST_F(Compile, NeedsAPlaceForTheCache) {
  const CommandResult nowhere = run_command(kCompile, {"--list"}, {.environment = {}});
  EXPECT_EQ(nowhere.exit_code, 1);
  EXPECT_THAT(nowhere.err, HasSubstr("set ACCELERATE_COMPILE_CACHE or HOME"));
}

}  // namespace
}  // namespace accelerate::launcher::commands
