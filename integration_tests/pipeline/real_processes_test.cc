// Two processes that have stages of a model, on Gloo and on MPI, compute what two simulated ranks
// do.
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

constexpr char kProgram[] = "integration_tests/pipeline/stages ";

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

TEST(PipelineProcesses, EqualTwoSimulatedRanksBitForBit) {
  const ChildResult mpi = mpi_tests::mpirun(2, absl::StrCat(kProgram, "mpi"));
  const ChildResult gloo = mpi_tests::mpirun(2, absl::StrCat(kProgram, "gloo"));
  const ChildResult simulated =
      mpi_tests::run(absl::StrCat("ACCELERATE_SIMULATE=1x2 ", kProgram, "sim"));
  EXPECT_EQ(mpi.exit_code, 0) << mpi.output;
  EXPECT_EQ(gloo.exit_code, 0) << gloo.output;
  // Two ranks, two models, three schedules, three steps.
  ASSERT_EQ(results(simulated.output).size(), 2 * 2 * 3 * 3) << simulated.output;
  EXPECT_EQ(results(mpi.output), results(simulated.output)) << mpi.output;
  EXPECT_EQ(results(gloo.output), results(simulated.output)) << gloo.output;
}

}  // namespace
}  // namespace accelerate
