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

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

// What the ranks logged as "test", without the time.
std::vector<std::string> logged(const char* topology, const std::function<void(Rank&)>& body,
                                uint64_t seed = 1) {
  Cluster cluster(topology, {.seed = seed});
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

TEST(Logger, IsTheMainProcesssUnlessAllAreAsked) {
  EXPECT_THAT(logged("2x2",
                     [](Rank&) {
                       Accelerator accelerator;
                       get_logger("test").warning("main");
                     }),
              ElementsAre("main"));
  EXPECT_THAT(logged("2x2",
                     [](Rank&) {
                       Accelerator accelerator;
                       get_logger("test").warning("all", {.main_process_only = false});
                     }),
              UnorderedElementsAre("[RANK 0] all", "[RANK 1] all", "[RANK 2] all", "[RANK 3] all"));
}

TEST(Logger, WritesRankByRankWhateverTheirTiming) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    EXPECT_THAT(logged(
                    "1x4",
                    [](Rank& rank) {
                      Accelerator accelerator;
                      const Logger logger = get_logger("test", "info");
                      // The last ones come first.
                      rank.runtime().sleep_for(absl::Seconds(4 - rank.index()));
                      for (const char* round : {"a", "b"}) {
                        logger.info([&] { return absl::StrCat(round, rank.index()); },
                                    {.main_process_only = false, .in_order = true});
                      }
                    },
                    seed),
                ElementsAre("[RANK 0] a0", "[RANK 1] a1", "[RANK 2] a2", "[RANK 3] a3",
                            "[RANK 0] b0", "[RANK 1] b1", "[RANK 2] b2", "[RANK 3] b3"));
  }
}

// Nothing is left to order, so nobody waits.
TEST(Logger, WaitsForNobodyWhereOnlyTheMainProcessWrites) {
  EXPECT_THAT(logged("1x2",
                     [](Rank& rank) {
                       Accelerator accelerator;
                       if (rank.index() == 0) get_logger("test").warning("x", {.in_order = true});
                     }),
              ElementsAre("x"));
}

TEST(Logger, KeepsItsLevelsAndWarningsPerRank) {
  EXPECT_THAT(logged("1x2",
                     [](Rank& rank) {
                       Accelerator accelerator;
                       const Logger logger = get_logger("test", rank.index() == 0 ? "error" : "");
                       for (int i = 0; i < 2; ++i) {
                         logger.warning_once("once", {.main_process_only = false});
                       }
                     }),
              ElementsAre("[RANK 1] once"));
}

TEST(Logger, TellsVirtualTime) {
  Cluster cluster("1x1");
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
