// A program under mpirun and under what looks like srun: its ranks find each other with none of
// torchrun's variables set.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/platform/child.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kProgram[] = "integration_tests/place/say_place";

ChildResult run(const std::string& command) { return run_shell(command).value(); }

// A port without a listener. Only for MASTER_PORT: tests may run side by side.
int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(fd);
  return ntohs(address.sin_port);
}

class Launchers : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name :
         {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
          "ACCELERATE_SIMULATE", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS"}) {
      unsetenv(name);
    }
    setenv("MASTER_PORT", std::to_string(free_port()).c_str(), 1);
    // Open MPI wants a home, and short paths for its sockets.
    setenv("HOME", "/tmp", 0);
    setenv("TMPDIR", "/tmp", 1);
  }
};

TEST_F(Launchers, RanksOfMpirunMeet) {
  const ChildResult output =
      run(std::string("mpirun --allow-run-as-root --oversubscribe -np 2 ") + kProgram);
  ASSERT_EQ(output.exit_code, 0) << output.output;
  EXPECT_THAT(output.output,
              AllOf(HasSubstr("place: Open MPI, rank 0 of 2, local rank 0 of 2, RANK=0, sum 3\n"),
                    HasSubstr("place: Open MPI, rank 1 of 2, local rank 1 of 2, RANK=1, sum 3\n")));
}

TEST_F(Launchers, TasksOfSrunMeet) {
  const std::string tasks =
      "for task in 0 1; do"
      "  SLURM_JOB_ID=4711 SLURM_STEP_ID=0 SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2"
      "  SLURM_NNODES=1 SLURM_NODEID=0 SLURM_STEP_TASKS_PER_NODE=2"
      "  SLURM_PROCID=$task SLURM_LOCALID=$task ";
  const ChildResult output = run("(" + tasks + kProgram + " & done; wait)");
  ASSERT_EQ(output.exit_code, 0) << output.output;
  EXPECT_THAT(output.output,
              AllOf(HasSubstr("place: SLURM, rank 0 of 2, local rank 0 of 2, RANK=0, sum 3\n"),
                    HasSubstr("place: SLURM, rank 1 of 2, local rank 1 of 2, RANK=1, sum 3\n")));
}

TEST_F(Launchers, ABatchScriptRunsOneRankAndIsToldSo) {
  const ChildResult output = run(
      std::string("SLURM_JOB_ID=4711 SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_LOCALID=0 ") + kProgram);
  ASSERT_EQ(output.exit_code, 0) << output.output;
  EXPECT_THAT(output.output,
              AllOf(HasSubstr("accelerate: this is the shell of a Slurm job"), HasSubstr("`srun`"),
                    HasSubstr("place: plain, rank 0 of 1, local rank 0 of 1, RANK=0, sum 1\n")));
}

TEST_F(Launchers, AContradictionEndsTheProgramAtOnce) {
  const ChildResult output =
      run(std::string("mpirun --allow-run-as-root --oversubscribe -np 2 env RANK=0 WORLD_SIZE=2 ") +
          kProgram);
  EXPECT_NE(output.exit_code, 0);
  EXPECT_THAT(output.output,
              AllOf(HasSubstr("RANK=0 WORLD_SIZE=2 (torchrun)"),
                    HasSubstr("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 (Open MPI)")));
}

TEST_F(Launchers, ARankIsBoundToItsNodeOnRequest) {
  const ChildResult output =
      run(std::string("ACCELERATE_CPU_AFFINITY=1 ACCELERATE_DEBUG_MODE=1 ") + kProgram);
  ASSERT_EQ(output.exit_code, 0) << output.output;
  EXPECT_THAT(output.output, HasSubstr("local rank 0 "));
  EXPECT_THAT(output.output, HasSubstr("NUMA node"));
}

}  // namespace
}  // namespace accelerate
