// Log lines of many ranks: who writes, in which order, with which prefix.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "accelerate/accelerate.h"
#include "simulator/cluster/cluster.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using ::testing::ElementsAre;
using ::testing::UnorderedElementsAreArray;

// The lines that the ranks logged as "test", without the time.
std::vector<std::string> logged(const std::function<void(Rank&)>& body, uint64_t seed = 1) {
  Cluster cluster = simulator::TopologyTest::make_cluster({.seed = seed});
  ::testing::internal::CaptureStderr();
  cluster.run_on_every_rank(body);
  std::vector<std::string> lines;
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(::testing::internal::GetCapturedStderr(), '\n'))) {
    const size_t name = line.find(" test: ");
    if (name != line.npos) lines.push_back(line.substr(name + std::string(" test: ").size()));
  }
  return lines;
}

// A line of each rank, in their order.
std::vector<std::string> lines_of_ranks(const std::string& text, bool with_rank = false) {
  std::vector<std::string> lines;
  for (int rank = 0; rank < simulator::TopologyTest::world_size(); ++rank) {
    lines.push_back(absl::StrCat("[RANK ", rank, "] ", text));
    if (with_rank) absl::StrAppend(&lines.back(), rank);
  }
  return lines;
}

TOPOLOGY_SUITE(Logging, .also = {"1x4"});

TEST_P(Logging, IsTheMainProcesssUnlessAllAreAsked) {
  EXPECT_THAT(logged([](Rank&) {
                Accelerator accelerator;
                get_logger("test").warning("main");
              }),
              ElementsAre("main"));
  EXPECT_THAT(logged([](Rank&) {
                Accelerator accelerator;
                get_logger("test").warning("all", {.main_process_only = false});
              }),
              UnorderedElementsAreArray(lines_of_ranks("all")));
}

TEST_P(Logging, IsRankByRankWhateverTheirTiming) {
  std::vector<std::string> expected = lines_of_ranks("a", /*with_rank=*/true);
  for (const std::string& line : lines_of_ranks("b", /*with_rank=*/true)) expected.push_back(line);
  for (const uint64_t seed : simulator::kSeeds) {
    EXPECT_EQ(
        logged(
            [](Rank& rank) {
              Accelerator accelerator;
              const Logger logger = get_logger("test", "info");
              // The last ones come first.
              rank.runtime().sleep_for(absl::Seconds(accelerator.num_processes() - rank.index()));
              for (const char* round : {"a", "b"}) {
                logger.info([&] { return absl::StrCat(round, rank.index()); },
                            {.main_process_only = false, .in_order = true});
              }
            },
            seed),
        expected);
  }
}

// A line of the main process alone has no order to keep, so no rank waits for it.
TEST_P(Logging, WaitsForNobodyWhereOnlyTheMainProcessWrites) {
  EXPECT_THAT(logged([](Rank& rank) {
                Accelerator accelerator;
                if (rank.index() == 0) get_logger("test").warning("x", {.in_order = true});
              }),
              ElementsAre("x"));
}

TEST_P(Logging, KeepsItsLevelsAndWarningsPerRank) {
  std::vector<std::string> expected = lines_of_ranks("once");
  expected.erase(expected.begin());
  EXPECT_THAT(logged([](Rank& rank) {
                Accelerator accelerator;
                const Logger logger = get_logger("test", rank.index() == 0 ? "error" : "");
                for (int i = 0; i < 2; ++i) {
                  logger.warning_once("once", {.main_process_only = false});
                }
              }),
              UnorderedElementsAreArray(expected));
}

TEST_P(Logging, TellsVirtualTime) {
  Cluster cluster = make_cluster();
  ::testing::internal::CaptureStderr();
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator;
    rank.runtime().sleep_for(absl::Milliseconds(90250));
    get_logger("test").warning("late");
  });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::HasSubstr("2020-01-01 00:01:30.250 WARNING test: late\n"));
}

}  // namespace
}  // namespace accelerate
