// Two processes that divide sequences, on Gloo and on MPI, compute what two simulated ranks do.
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "accelerate/platform/child.h"
#include "integration_tests/mpi/mpirun.h"

namespace accelerate {
namespace {

constexpr char kProgram[] = "integration_tests/context/sequences ";

// The lines of both ranks, in order.
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

void expect_as_simulated(const std::string& how) {
  const ChildResult mpi = mpi_tests::mpirun(2, absl::StrCat(kProgram, "mpi ", how));
  const ChildResult gloo = mpi_tests::mpirun(2, absl::StrCat(kProgram, "gloo ", how));
  const ChildResult simulated =
      mpi_tests::run(absl::StrCat("ACCELERATE_SIMULATE=1x2 ", kProgram, "sim ", how));
  EXPECT_EQ(mpi.exit_code, 0) << mpi.output;
  EXPECT_EQ(gloo.exit_code, 0) << gloo.output;
  // Two ranks, two models, three steps.
  ASSERT_EQ(results(simulated.output).size(), 2 * 2 * 3) << simulated.output;
  EXPECT_EQ(results(mpi.output), results(simulated.output)) << mpi.output;
  EXPECT_EQ(results(gloo.output), results(simulated.output)) << gloo.output;
}

TEST(SequenceProcesses, OfARingEqualTwoSimulatedRanksBitForBit) { expect_as_simulated("alltoall"); }

TEST(SequenceProcesses, ThatGatherKeysEqualTwoSimulatedRanksBitForBit) {
  expect_as_simulated("allgather");
}

TEST(SequenceProcesses, OfUlyssesEqualTwoSimulatedRanksBitForBit) {
  expect_as_simulated("ulysses");
}

}  // namespace
}  // namespace accelerate
