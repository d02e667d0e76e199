// The files of a process that logs, after it ended in different ways.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/platform/host_files.h"
#include "integration_tests/tracking/curves.h"
#include "launch/testing/launcher_process.h"
#include "trackers/testing/wandb_log_reader.h"

namespace accelerate::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using Process = launcher::testing::LauncherProcess;

constexpr char kLogger[] = "integration_tests/tracking/logger";

class TrackingProcessTest : public ::testing::Test {
 protected:
  std::vector<std::string> logger(int count, const std::string& way) const {
    return {kLogger, "tensorboard,jsonl", folder_, std::to_string(count), way};
  }
  void expect_curves(int64_t least) const {
    for (const Curve& curve :
         {jsonl_curve(folder_ + "/run", "loss"), tensorboard_curve(folder_ + "/run", "loss")}) {
      ASSERT_GE(std::ssize(curve), least);
      for (int64_t i = 0; i < std::ssize(curve); ++i) {
        ASSERT_EQ(curve[i].first, i + 1) << "nothing is missing in between";
        ASSERT_FLOAT_EQ(curve[i].second, 1.0 / static_cast<double>(i + 1));
      }
    }
  }

  // The lines of the only file of that name in any folder.
  int64_t lines_in(const std::string& name) const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
      if (entry.path().filename() != name) continue;
      std::ifstream file(entry.path());
      return std::count(std::istreambuf_iterator<char>(file), {}, '\n');
    }
    return -1;
  }
  size_t wandb_steps() const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
      if (entry.path().extension() != ".wandb") continue;
      HostFiles files;
      return trackers::read_run(read_file(files, entry.path().string()).value()).history.size();
    }
    return 0;
  }

  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
};

TEST_F(TrackingProcessTest, WhoForgetsToEndLosesNothing) {
  for (const char* way : {"return", "exit", "fork"}) {
    std::filesystem::remove_all(folder_ + "/run");
    Process process(logger(1000, way));
    EXPECT_EQ(process.finish(), 0) << process.stderr_text();
    expect_curves(1000);
  }
}

TEST_F(TrackingProcessTest, AnExceptionLosesNothing) {
  Process process(logger(1000, "throw"));
  EXPECT_EQ(process.finish(), 1);
  EXPECT_THAT(process.stderr_text(), HasSubstr("training failed"));
  expect_curves(1000);
}

// Trackers with other file formats.
TEST_F(TrackingProcessTest, OtherTrackersLoseNothingEither) {
  for (const char* way : {"exit", "throw"}) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    const std::string program = std::filesystem::absolute(kLogger).string();
    Process process({program, "csv,dvclive,mlflow,wandb,trackio", folder_, "1000", way},
                    {.environment = {"MLFLOW_TRACKING_URI=", "WANDB_MODE=offline",
                                     "WANDB_DIR=" + folder_, "TRACKIO_DIR=" + folder_ + "/trackio"},
                     .before_exec = [this] {
                       if (chdir(folder_.c_str()) != 0) _exit(99);
                     }});
    EXPECT_EQ(process.finish(), way == std::string("throw") ? 1 : 0) << process.stderr_text();
    EXPECT_EQ(process.stderr_text().find("tracker "), std::string::npos) << process.stderr_text();
    EXPECT_EQ(lines_in("metrics.csv"), 1001) << "with the header";
    EXPECT_EQ(lines_in("loss.tsv"), 1001) << "with the header";
    EXPECT_EQ(lines_in("loss"), 1000) << "of mlflow";
    EXPECT_EQ(wandb_steps(), 1000u);
    EXPECT_TRUE(std::filesystem::exists(folder_ + "/trackio"));
  }
}

TEST_F(TrackingProcessTest, SignalsEndItAsBeforeAndLoseNothing) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    std::filesystem::remove_all(folder_ + "/run");
    // The caller of the tests may ignore these signals.
    Process process(logger(1000, "wait"),
                    {.before_exec = [signal] { std::signal(signal, SIG_DFL); }});
    EXPECT_EQ(process.next_output_line(), "logged\n");
    process.signal(signal);
    EXPECT_EQ(process.finish(), 128 + signal) << process.stderr_text();
    expect_curves(1000);
  }
}

TEST_F(TrackingProcessTest, KilledItLeavesAllUpToTheLastFlush) {
  Process process(logger(100, "flush"));
  int64_t flushed = 0;
  while (flushed < 300) flushed = std::stoll(process.next_output_line());
  process.signal(SIGKILL);
  EXPECT_EQ(process.finish(), 128 + SIGKILL);
  expect_curves(flushed);
}

TEST_F(TrackingProcessTest, AFullDiskIsSaidOnceAndStopsNothing) {
  // Every write to it fails for lack of space.
  std::filesystem::create_directories(folder_ + "/run");
  std::filesystem::create_symlink("/dev/full", folder_ + "/run/metrics.csv");
  Process process({kLogger, "jsonl,csv", folder_, "1000", "return"});
  EXPECT_EQ(process.finish(), 0) << process.stderr_text();
  EXPECT_THAT(jsonl_curve(folder_ + "/run", "loss"), SizeIs(1000));
  const size_t said = process.stderr_text().find("tracker csv failed");
  ASSERT_NE(said, std::string::npos) << process.stderr_text();
  EXPECT_EQ(process.stderr_text().find("tracker csv failed", said + 1), std::string::npos);
}

}  // namespace
}  // namespace accelerate::testing
