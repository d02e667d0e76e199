// The demo's curves are those of the table that it prints.
#include <cstdio>
#include <map>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/platform/host_files.h"
#include "integration_tests/tracking/curves.h"
#include "launch/testing/launcher_process.h"

namespace accelerate::testing {
namespace {

using Process = launcher::testing::LauncherProcess;

struct Row {
  double loss = 0;
  double accuracy = 0;
};

// The rows of the table in `text`, by epoch.
std::map<int64_t, Row> table(const std::string& text) {
  std::map<int64_t, Row> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    long epoch = 0;
    Row row;
    int end = 0;
    // A launcher's lines begin with the rank.
    const size_t start = line.starts_with('[') ? line.find(']') + 1 : 0;
    if (std::sscanf(line.c_str() + start, "%ld %lf %lf%n", &epoch, &row.loss, &row.accuracy,
                    &end) == 3) {
      rows[epoch] = row;
    }
  }
  return rows;
}

void expect_curves_of_table(const std::vector<std::string>& launch) {
  const TemporaryFolder temporary;
  const std::string& folder = temporary.path();
  std::vector<std::string> command = launch;
  for (const char* word : {"accelerate/examples/digits/digits", "--data",
                           "accelerate/examples/digits/digits.safetensors", "--epochs", "6",
                           "--log_with", "tensorboard,jsonl", "--logging_dir"}) {
    command.emplace_back(word);
  }
  command.push_back(folder);
  Process process(command);
  ASSERT_EQ(process.finish(), 0) << process.stderr_text();
  const std::map<int64_t, Row> rows = table(process.stdout_text());
  ASSERT_EQ(rows.size(), 3) << process.stdout_text();  // epochs 1, 5 and 6

  const std::string run = folder + "/digits";
  for (const auto& read : {jsonl_curve, tensorboard_curve}) {
    const Curve epochs = read(run, "epoch");
    const Curve losses = read(run, "epoch_loss");
    const Curve accuracies = read(run, "test_accuracy");
    const Curve steps = read(run, "train_loss");
    ASSERT_EQ(epochs.size(), 6);
    ASSERT_EQ(losses.size(), 6);
    ASSERT_EQ(accuracies.size(), 3);
    const int64_t per_epoch = epochs[0].first;
    ASSERT_EQ(std::ssize(steps), 6 * per_epoch);
    size_t seen = 0;
    for (size_t i = 0; i < epochs.size(); ++i) {
      const auto epoch = static_cast<int64_t>(epochs[i].second);
      EXPECT_EQ(epochs[i].first, epoch * per_epoch);
      double sum = 0;
      for (int64_t s = 0; s < per_epoch; ++s) sum += steps[i * per_epoch + s].second;
      EXPECT_NEAR(losses[i].second, sum / static_cast<double>(per_epoch), 1e-6);
      const auto row = rows.find(epoch);
      if (row == rows.end()) continue;
      EXPECT_NEAR(losses[i].second, row->second.loss, 5.1e-5);
      EXPECT_EQ(accuracies[seen].first, epochs[i].first);
      EXPECT_NEAR(accuracies[seen].second, row->second.accuracy, 5.1e-4);
      ++seen;
    }
    EXPECT_EQ(seen, 3);
  }
}

TEST(DemoCurvesTest, OfOneProcess) { expect_curves_of_table({}); }

TEST(DemoCurvesTest, OfTwoProcesses) {
  expect_curves_of_table({"launch/accelerate", "launch", "--num_processes", "2"});
}

// One shape: the demo's main process logs on any; simulated_test has the trackers on all of them.
TEST(DemoCurvesTest, OfASimulatedCluster) {
  expect_curves_of_table({"launch/accelerate", "launch", "--simulate", "2x2"});
}

}  // namespace
}  // namespace accelerate::testing
