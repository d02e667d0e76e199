// Programs under mpirun: what they compute, and how they fail.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "accelerate/platform/host_files.h"
#include "integration_tests/mpi/mpirun.h"

namespace accelerate::mpi_tests {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr char kRank[] = "integration_tests/mpi/rank ";
constexpr char kLosses[] =
    "integration_tests/mpi/losses accelerate/examples/digits/digits.safetensors ";

constexpr char kSharded[] = "integration_tests/mpi/sharded ";

// The numbers behind "loss " on each line.
std::vector<std::string> losses(const std::string& text) {
  std::vector<std::string> found;
  for (size_t at = text.find("loss 0x"); at != std::string::npos;
       at = text.find("loss 0x", at + 1)) {
    found.push_back(text.substr(at + 5, text.find('\n', at) - at - 5));
  }
  return found;
}

// The lines of the program `sharded`: eight losses of each model, four norms, and its weights;
// eight losses beside weights in 8 bits and in 4; and a number of each rank for two placed models.
std::vector<std::string> sharded_results(const std::string& text) {
  std::vector<std::string> found;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    for (const char* name : {"loss 0x", "norm 0x", "weights 0x"}) {
      const size_t at = line.find(name);
      if (at != absl::string_view::npos) found.emplace_back(line.substr(at));
    }
  }
  return found;
}

TEST(MpiProcesses, RunTheContract) {
  const ChildResult output = mpirun(5, "integration_tests/mpi/contract");
  EXPECT_EQ(output.exit_code, 0) << output.output;
  EXPECT_THAT(output.output, HasSubstr("[  PASSED  ]"));
}

TEST(MpiProcesses, NeedNoAddress) {
  for (int ranks : {1, 4}) {
    const ChildResult output = mpirun(ranks, std::string(kRank) + "none");
    EXPECT_EQ(output.exit_code, 0) << output.output;
    EXPECT_THAT(output.output, HasSubstr("sum " + std::to_string(ranks)));
  }
}

TEST(MpiProcesses, EqualGlooAndTwoSimulatedRanksBitForBit) {
  const ChildResult mpi = mpirun(2, std::string(kLosses) + "mpi");
  const ChildResult gloo = mpirun(2, std::string(kLosses) + "gloo");
  const ChildResult simulated = run(std::string("ACCELERATE_SIMULATE=1x2 ") + kLosses + "sim");
  ASSERT_EQ(losses(mpi.output).size(), 10) << mpi.output;
  EXPECT_EQ(losses(mpi.output), losses(gloo.output)) << gloo.output;
  EXPECT_EQ(losses(mpi.output), losses(simulated.output)) << simulated.output;
  EXPECT_EQ(mpi.exit_code, 0) << mpi.output;
}

TEST(MpiProcesses, EqualFourSimulatedRanksBitForBit) {
  const ChildResult mpi = mpirun(4, std::string(kLosses) + "mpi");
  const ChildResult simulated = run(std::string("ACCELERATE_SIMULATE=1x4 ") + kLosses + "sim");
  ASSERT_EQ(losses(mpi.output).size(), 10) << mpi.output;
  EXPECT_EQ(losses(mpi.output), losses(simulated.output)) << simulated.output;
}

TEST(MpiProcesses, TrainShardsAsGlooAndTwoSimulatedRanksBitForBit) {
  const TemporaryFolder folder;
  const auto program = [&](const std::string& backend) {
    return absl::StrCat(kSharded, backend, " ", folder.path(backend));
  };
  const ChildResult mpi = mpirun(2, program("mpi"));
  const ChildResult gloo = mpirun(2, program("gloo"));
  const ChildResult simulated = run("ACCELERATE_SIMULATE=1x2 " + program("sim"));
  ASSERT_EQ(sharded_results(mpi.output).size(), 2 * (8 + 4 + 1) + 2 * 8 + 2 * 2) << mpi.output;
  EXPECT_EQ(sharded_results(mpi.output), sharded_results(gloo.output)) << gloo.output;
  EXPECT_EQ(sharded_results(mpi.output), sharded_results(simulated.output)) << simulated.output;
  EXPECT_EQ(mpi.exit_code, 0) << mpi.output;
}

TEST(MpiProcesses, NameTheRankThatDoesNotCome) {
  for (const char* failure : {"ends", "stops"}) {
    const ChildResult output = mpirun(3, std::string(kRank) + failure);
    EXPECT_NE(output.exit_code, 0);
    EXPECT_THAT(output.output, AllOf(HasSubstr("all_reduce"), HasSubstr("timed out after 2000 ms"),
                                     ContainsRegex("waiting for rank 1")))
        << failure;
  }
}

// Ranks fail because of rank 1, or mpirun ends them. Rank 1 writes its line before it tells the
// others, but mpirun reads each rank's pipe by itself, so the lines may arrive in another order.
TEST(MpiProcesses, NameTheRankThatFailedInTheLineOfEachRank) {
  for (int run = 0; run < 2; ++run) {
    const ChildResult output = mpirun(4, std::string(kRank) + "throws");
    EXPECT_NE(output.exit_code, 0);
    std::vector<std::string> failures;
    for (const absl::string_view line : absl::StrSplit(output.output, '\n')) {
      if (absl::StartsWith(line, "accelerate: rank ")) failures.emplace_back(line);
    }
    EXPECT_THAT(failures, Contains("accelerate: rank 1 failed: out of patience")) << output.output;
    EXPECT_THAT(failures, Each(HasSubstr("rank 1 failed: out of patience"))) << output.output;
  }
}

TEST(MpiProcesses, EndWithARankThatIsKilled) {
  const ChildResult output = mpirun(3, std::string(kRank) + "is_killed");
  EXPECT_NE(output.exit_code, 0);
  EXPECT_THAT(output.output, ContainsRegex("rank 1 .*signal 9")) << output.output;
}

TEST(MpiProcesses, NoticeCallsThatDiffer) {
  const ChildResult output = mpirun(2, std::string(kRank) + "differs");
  EXPECT_NE(output.exit_code, 0);
  EXPECT_THAT(output.output, HasSubstr("all_reduce"));
}

TEST(MpiProcesses, SayHowToStartThem) {
  const ChildResult output =
      run("RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 "
          "integration_tests/mpi/contract --gtest_list_tests; "
          "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 "
          "OMPI_COMM_WORLD_LOCAL_SIZE=2 integration_tests/mpi/rank none");
  EXPECT_NE(output.exit_code, 0);
  EXPECT_THAT(output.output, HasSubstr("start the program with `mpirun -n 2`"));
}

}  // namespace
}  // namespace accelerate::mpi_tests
