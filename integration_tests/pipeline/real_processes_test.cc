// Two and four processes that have stages of a model compute what as many simulated ranks do, on
// Gloo, and two on MPI.
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "accelerate/platform/child.h"
#include "integration_tests/mpi/mpirun.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;

constexpr char kProgram[] = "integration_tests/pipeline/stages ";

// The lines of all ranks, in order.
std::vector<std::string> results(const std::string& text) {
  std::vector<std::string> found;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const size_t at = line.find("rank ");
    if (at != absl::string_view::npos && line.find(" loss 0x") != absl::string_view::npos) {
      found.emplace_back(line.substr(at));
    }
  }
  std::ranges::sort(found);
  return found;
}

// `mode`: behind the backend.
void expect_equal(int ranks, const std::vector<std::string>& backends,
                  const std::string& mode = "") {
  const ChildResult simulated =
      mpi_tests::run(absl::StrCat("ACCELERATE_SIMULATE=1x", ranks, " ", kProgram, "sim", mode));
  // Two models, four schedules, three steps.
  ASSERT_EQ(results(simulated.output).size(), static_cast<size_t>(ranks * 2 * 4 * 3))
      << simulated.output;
  for (const std::string& backend : backends) {
    const ChildResult real = mpi_tests::mpirun(ranks, kProgram + backend + mode);
    EXPECT_EQ(real.exit_code, 0) << real.output;
    EXPECT_EQ(results(real.output), results(simulated.output)) << backend << ": " << real.output;
  }
}

TEST(PipelineProcesses, EqualTwoSimulatedRanksBitForBit) { expect_equal(2, {"mpi", "gloo"}); }

TEST(PipelineProcesses, EqualFourSimulatedRanksBitForBit) { expect_equal(4, {"gloo"}); }

// Ranks on CPUs compare what they use and reduce.
TEST(PipelineProcesses, OfDividedStagesEqualSimulatedRanksBitForBit) {
  expect_equal(4, {"gloo"}, " shards");
}

TEST(PipelineProcesses, EndWithTheTextOfAStageThatThrows) {
  const ChildResult output = mpi_tests::mpirun(2, absl::StrCat(kProgram, "gloo throws"));
  EXPECT_NE(output.exit_code, 0);
  EXPECT_THAT(output.output, HasSubstr("rank 1 failed: out of patience"));
}

}  // namespace
}  // namespace accelerate
