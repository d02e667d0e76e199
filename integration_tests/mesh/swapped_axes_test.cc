// Ranks that are in two groups enter their collectives in different orders: each waits for one that
// waits for another. device_mesh_test.cc has the same in the simulator.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "integration_tests/watch/processes.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using watch_tests::ProcessResult;

TEST(SwappedAxes, AreBothNamedByEachOfFourGlooProcessesInDebugMode) {
  const auto results = watch_tests::run_processes(4, {"integration_tests/mesh/swapped_axes"},
                                                  {{"ACCELERATE_DEBUG_MODE", "1"}});
  for (const ProcessResult& result : results) {
    EXPECT_EQ(result.exit_code, 1) << result.output;
    EXPECT_THAT(result.output,
                AllOf(HasSubstr("all_reduce #0"), ContainsRegex("tp of ranks [02],[13]"),
                      ContainsRegex("cp of ranks [01],[23]"),
                      ContainsRegex("1 operation behind, .*it is in all_reduce #0")));
  }
}

}  // namespace
}  // namespace accelerate
