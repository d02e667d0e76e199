// Trackers on the ranks of a simulated cluster: which ranks have one, the times of calls, and
// faults.
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerator.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class Spy : public GeneralTracker {
 public:
  Spy(const TrackerSetup& setup, std::vector<std::string>& calls)
      : rank_(setup.services.rank), calls_(calls) {}
  void store_init_configuration(const TrackerDict& /*values*/) override {}
  void log(const TrackerDict& values, const TrackerStep& step) override {
    calls_.push_back("rank " + std::to_string(rank_) + " at " +
                     absl::FormatDuration(step.time - absl::UnixEpoch()) + " " +
                     value_text(values));
  }

 private:
  const int rank_;
  std::vector<std::string>& calls_;
};

TrackerClass spy(const std::string& name, bool main_process_only, std::vector<std::string>& calls) {
  return {
      .name = name,
      .requires_logging_directory = false,
      .main_process_only = main_process_only,
      .tracker = [&](const TrackerSetup& setup) { return std::make_unique<Spy>(setup, calls); }};
}

// The calls of two trackers in a run with that seed.
std::vector<std::string> told(uint64_t seed) {
  std::vector<std::string> calls;
  simulator::Cluster cluster = simulator::TopologyTest::make_cluster({.seed = seed});
  cluster.run_on_every_rank([&](simulator::Rank& rank) {
    Accelerator accelerator({.log_with = {spy("main", true, calls), spy("each", false, calls)}});
    accelerator.init_trackers("run");
    rank.runtime().sleep_for(absl::Seconds(1 + accelerator.process_index()));
    accelerator.log({{"rank", accelerator.process_index()}}, 1);
    accelerator.end_training();
  });
  return calls;
}

TOPOLOGY_SUITE(SimulatedTrackers);

TEST_P(SimulatedTrackers, TheMainProcessAloneHasMost) {
  const std::vector<std::string> calls = told(1);
  ASSERT_EQ(calls.size(), 1 + world_size()) << "one of main, and one of each rank";
  EXPECT_THAT(calls[0], HasSubstr("rank 0"));
  EXPECT_THAT(calls.back(), HasSubstr(absl::StrCat("rank ", world_size() - 1)));
  EXPECT_THAT(calls.back(), HasSubstr(absl::StrCat("{'rank': ", world_size() - 1, "}")));
}

TEST_P(SimulatedTrackers, ASeedRepeatsTimesAndOrder) { EXPECT_EQ(told(7), told(7)); }

TEST_P(SimulatedTrackers, AFullDiskIsSaidOnceAndTrainingGoesOn) {
  const auto disk =
      std::make_shared<simulator::SimDisk>(simulator::SimDiskOptions{.capacity = 4096});
  simulator::Cluster cluster = make_cluster({.seed = 1, .disk = disk});
  int steps = 0;
  ::testing::internal::CaptureStderr();
  cluster.run_on_every_rank([&](simulator::Rank& /*rank*/) {
    Accelerator accelerator({.project_dir = "/sim/logs", .log_with = {"jsonl"}});
    accelerator.init_trackers("run");
    for (int step = 0; step < 1000; ++step) {
      accelerator.log({{"loss", 0.5}}, step);
      if (step % 100 == 99) accelerator.get_tracker("jsonl").flush();
      ++steps;
    }
    accelerator.end_training();
  });
  EXPECT_EQ(steps, 1000 * world_size());
  const std::string console = ::testing::internal::GetCapturedStderr();
  constexpr char kSaid[] = "tracker jsonl failed: cannot write /sim/logs/run/metrics.jsonl";
  const size_t first = console.find(kSaid);
  ASSERT_NE(first, std::string::npos) << console;
  EXPECT_EQ(console.find(kSaid, first + 1), std::string::npos) << console;
  EXPECT_THAT(console, HasSubstr("records are lost"));
}

// Otherwise a program that asks for it fails where it does not link the trackers.
TEST(LinkedTrackers, AreKnownWithoutBeingLinked) {
  const std::vector<TrackerClass>& linked = TrackerRegistry::linked().classes();
  EXPECT_GE(linked.size(), 13u);
  for (const TrackerClass& each : linked) {
    EXPECT_TRUE(is_known_tracker(each.name, TrackerRegistry())) << each.name;
  }
}

// The contents of that file in all runs below a folder.
std::vector<std::string> mlflow_files(FileSystem& files, const std::string& folder,
                                      const std::string& name) {
  std::vector<std::string> texts;
  const auto names_in = [&](const std::string& path) {
    return files.list(path).value_or(std::vector<std::string>());
  };
  for (const std::string& experiment : names_in(folder)) {
    for (const std::string& run : names_in(join_path(folder, experiment))) {
      const std::string path = join_path(join_path(join_path(folder, experiment), run), name);
      const auto text = read_file(files, path);
      if (text.ok()) texts.push_back(*text);
    }
  }
  return texts;
}

TEST_P(SimulatedTrackers, TheirFilesAreOnTheSimulatedDisk) {
  const auto disk = std::make_shared<simulator::SimDisk>();
  simulator::Cluster cluster = make_cluster({.seed = 1, .disk = disk});
  cluster.run_on_every_rank([&](simulator::Rank& /*rank*/) {
    Accelerator accelerator(
        {.project_dir = "/sim/logs", .log_with = {"jsonl", "csv", "tensorboard", "mlflow"}});
    accelerator.init_trackers("run", TrackerDict{{"lr", 0.1}});
    accelerator.log({{"loss", 0.5}}, 1);
  });
  for (const char* name : {"metrics.jsonl", "metrics.csv"}) {
    const auto text = read_file(*disk, std::string("/sim/logs/run/") + name);
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_THAT(*text, HasSubstr("loss"));
  }
  const auto names = disk->list("/sim/logs/run");
  ASSERT_TRUE(names.ok()) << names.status();
  EXPECT_THAT(*names, Contains(StartsWith("events.out.tfevents.")));
  EXPECT_THAT(mlflow_files(*disk, "/sim/logs/mlruns", "metrics/loss"),
              ElementsAre(EndsWith(" 0.5 1\n")));
  EXPECT_THAT(mlflow_files(*disk, "/sim/logs/mlruns", "params/lr"), ElementsAre("0.1"));
}

}  // namespace
}  // namespace accelerate
