#include "accelerate/platform/topology.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Variables = std::vector<std::pair<const char*, const char*>>;

// A clean slate: the variables of the test's own environment must not leak in.
Environment with(const Variables& variables) {
  Environment environment;
  for (const char* name : {"RANK",
                           "WORLD_SIZE",
                           "LOCAL_RANK",
                           "LOCAL_WORLD_SIZE",
                           "GROUP_RANK",
                           "MASTER_ADDR",
                           "MASTER_PORT",
                           "PMI_RANK",
                           "PMI_SIZE",
                           "MPI_LOCALRANKID",
                           "MPI_LOCALNRANKS",
                           "I_MPI_ROOT",
                           "I_MPI_MPIRUN",
                           "PMIX_RANK",
                           "OMPI_COMM_WORLD_RANK",
                           "OMPI_COMM_WORLD_SIZE",
                           "OMPI_COMM_WORLD_LOCAL_RANK",
                           "OMPI_COMM_WORLD_LOCAL_SIZE",
                           "MV2_COMM_WORLD_RANK",
                           "MV2_COMM_WORLD_SIZE",
                           "MV2_COMM_WORLD_LOCAL_RANK",
                           "MV2_COMM_WORLD_LOCAL_SIZE",
                           "SLURM_JOB_ID",
                           "SLURM_JOBID",
                           "SLURM_STEP_ID",
                           "SLURM_PROCID",
                           "SLURM_LOCALID",
                           "SLURM_NODEID",
                           "SLURM_NTASKS",
                           "SLURM_STEP_NUM_TASKS",
                           "SLURM_STEP_TASKS_PER_NODE",
                           "SLURM_TASKS_PER_NODE",
                           "SLURM_NTASKS_PER_NODE",
                           "SLURM_STEP_NUM_NODES",
                           "SLURM_NNODES",
                           "SLURM_JOB_NUM_NODES",
                           "SLURM_STEP_NODELIST",
                           "SLURM_JOB_NODELIST",
                           "SLURM_NODELIST"}) {
    environment.unset(name);
  }
  for (auto [name, value] : variables) environment.set(name, value);
  return environment;
}

Variables operator+(Variables a, const Variables& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::string text(const Topology& topology) {
  return topology.source + ": rank " + std::to_string(topology.rank) + "/" +
         std::to_string(topology.world_size) + ", local " + std::to_string(topology.local_rank) +
         "/" + std::to_string(topology.local_world_size) + ", node " +
         std::to_string(topology.node_rank) + "/" + std::to_string(topology.num_nodes);
}

std::string resolve(const Variables& variables) {
  auto topology = topology_from_environment(with(variables));
  return topology.ok() ? text(*topology) : std::string(topology.status().message());
}

std::string meet(const Variables& variables) {
  auto placement = placement_from_environment(with(variables));
  return placement.ok() ? placement->master_addr + ":" + std::to_string(placement->master_port)
                        : std::string(placement.status().message());
}

Variables torchrun(const char* rank, const char* world_size, const char* local_rank,
                   const char* local_world_size, const char* group_rank) {
  return {{"RANK", rank},
          {"WORLD_SIZE", world_size},
          {"LOCAL_RANK", local_rank},
          {"LOCAL_WORLD_SIZE", local_world_size},
          {"GROUP_RANK", group_rank}};
}

Variables open_mpi(const char* rank, const char* world_size, const char* local_rank,
                   const char* local_world_size) {
  return {{"OMPI_COMM_WORLD_RANK", rank},
          {"OMPI_COMM_WORLD_SIZE", world_size},
          {"OMPI_COMM_WORLD_LOCAL_RANK", local_rank},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", local_world_size},
          {"PMIX_RANK", rank}};
}

Variables pmi(const char* rank, const char* world_size, const char* local_rank,
              const char* local_world_size) {
  return {{"PMI_RANK", rank},
          {"PMI_SIZE", world_size},
          {"MPI_LOCALRANKID", local_rank},
          {"MPI_LOCALNRANKS", local_world_size}};
}

// A task of `srun` with what Slurm sets in each.
Variables srun(const char* rank, const char* world_size, const char* local_rank, const char* node,
               const char* nodes, const char* tasks_per_node) {
  return {{"SLURM_JOB_ID", "4711"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_PROCID", rank},
          {"SLURM_NTASKS", world_size},
          {"SLURM_STEP_NUM_TASKS", world_size},
          {"SLURM_LOCALID", local_rank},
          {"SLURM_NODEID", node},
          {"SLURM_NNODES", nodes},
          {"SLURM_STEP_TASKS_PER_NODE", tasks_per_node},
          {"SLURM_JOB_NODELIST", "n[03-05,9],m1"}};
}

// The variables that the script of `sbatch --ntasks=N` sees.
Variables batch_script(const char* tasks) {
  return {{"SLURM_JOB_ID", "4711"},
          {"SLURM_PROCID", "0"},
          {"SLURM_LOCALID", "0"},
          {"SLURM_NODEID", "0"},
          {"SLURM_NNODES", "2"},
          {"SLURM_NTASKS", tasks},
          {"SLURM_TASKS_PER_NODE", "4(x2)"}};
}

TEST(Topology, IsOneRankWhenNothingIsSet) {
  EXPECT_EQ(resolve({}), "plain: rank 0/1, local 0/1, node 0/1");
  EXPECT_EQ(topology_from_environment(with({}))->shape(), "1x1");
}

TEST(Topology, UnderstandsEachLauncher) {
  struct Case {
    Variables variables;
    const char* expected;
  };
  for (const Case& c : std::vector<Case>{
           {torchrun("6", "8", "2", "4", "1"), "torchrun: rank 6/8, local 2/4, node 1/2"},
           // By hand: all on one node, unless told.
           {{{"RANK", "1"}, {"WORLD_SIZE", "2"}}, "torchrun: rank 1/2, local 1/2, node 0/1"},
           {open_mpi("6", "8", "2", "4"), "Open MPI: rank 6/8, local 2/4, node 1/2"},
           // mpirun --map-by node deals ranks out in turns.
           {open_mpi("1", "8", "0", "4"), "Open MPI: rank 1/8, local 0/4, node 1/2"},
           {pmi("6", "8", "2", "4"), "MPICH/PMI: rank 6/8, local 2/4, node 1/2"},
           {pmi("6", "8", "2", "4") + Variables{{"I_MPI_MPIRUN", "mpirun"}},
            "Intel MPI: rank 6/8, local 2/4, node 1/2"},
           {{{"MV2_COMM_WORLD_RANK", "6"},
             {"MV2_COMM_WORLD_SIZE", "8"},
             {"MV2_COMM_WORLD_LOCAL_RANK", "2"},
             {"MV2_COMM_WORLD_LOCAL_SIZE", "4"}},
            "MVAPICH2: rank 6/8, local 2/4, node 1/2"},
           {srun("6", "8", "2", "1", "2", "4(x2)"), "SLURM: rank 6/8, local 2/4, node 1/2"},
           // Nodes of different sizes.
           {srun("7", "8", "0", "2", "3", "5,2,1"), "SLURM: rank 7/8, local 0/1, node 2/3"},
           {torchrun("5", "6", "3", "4", "2"), "torchrun: rank 5/6, local 3/4, node 2/3"},
           // PMIx says only the rank; srun --mpi=pmix says the rest.
           {srun("6", "8", "2", "1", "2", "4(x2)") + Variables{{"PMIX_RANK", "6"}},
            "SLURM: rank 6/8, local 2/4, node 1/2"},
           // srun --mpi=pmi2: PMI knows no local ranks, Slurm does.
           {srun("6", "8", "2", "1", "2", "4(x2)") +
                Variables{{"PMI_RANK", "6"}, {"PMI_SIZE", "8"}},
            "MPICH/PMI: rank 6/8, local 2/4, node 1/2"},
       }) {
    EXPECT_EQ(resolve(c.variables), c.expected);
  }
}

TEST(Topology, TakesOfEachQuantityTheFirstThatIsSet) {
  // -1 means "not set", as Hugging Face has it.
  EXPECT_EQ(resolve(open_mpi("1", "2", "1", "2") + Variables{{"RANK", "-1"}, {"LOCAL_RANK", "-1"}}),
            "Open MPI: rank 1/2, local 1/2, node 0/1");
  EXPECT_EQ(resolve(open_mpi("1", "2", "1", "2") + Variables{{"RANK", ""}, {"WORLD_SIZE", ""}}),
            "Open MPI: rank 1/2, local 1/2, node 0/1");
  EXPECT_EQ(resolve(open_mpi("1", "4", "1", "4") +
                    Variables{{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}}),
            "Open MPI: rank 1/4, local 0/1, node 1/4");
  // WORLD_SIZE from the user's script, the rank from srun.
  EXPECT_EQ(resolve(srun("3", "4", "1", "1", "2", "2(x2)") + Variables{{"WORLD_SIZE", "4"}}),
            "torchrun: rank 3/4, local 1/2, node 1/2");
}

TEST(Topology, PassesOverWhatLaunchersWereStartedBy) {
  const char* expected = "torchrun: rank 5/8, local 1/4, node 1/2";
  const Variables ranks = torchrun("5", "8", "1", "4", "1");
  // srun --ntasks-per-node=1 torchrun --nproc-per-node=4, and the same with mpirun.
  EXPECT_EQ(resolve(ranks + srun("1", "2", "0", "1", "2", "1(x2)")), expected);
  EXPECT_EQ(resolve(ranks + open_mpi("1", "2", "0", "1")), expected);
  // A launcher of one's own, which knows local ranks but not GROUP_RANK.
  EXPECT_EQ(
      resolve(
          Variables{
              {"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"}} +
          srun("1", "2", "0", "1", "2", "1(x2)")),
      expected);
  // Four launchers, each with a job of its own.
  EXPECT_EQ(resolve(torchrun("1", "2", "1", "2", "0") + open_mpi("3", "4", "3", "4")),
            "torchrun: rank 1/2, local 1/2, node 0/1");
  EXPECT_EQ(resolve(Variables{{"RANK", "0"}, {"WORLD_SIZE", "1"}} + open_mpi("3", "4", "3", "4")),
            "torchrun: rank 0/1, local 0/1, node 0/1");
  // mpirun in a batch script; its daemon on the second node is a task of Slurm's.
  EXPECT_EQ(resolve(open_mpi("3", "8", "3", "4") + batch_script("8")),
            "Open MPI: rank 3/8, local 3/4, node 0/2");
  EXPECT_EQ(resolve(open_mpi("5", "8", "1", "4") + srun("1", "2", "0", "1", "2", "1(x2)")),
            "Open MPI: rank 5/8, local 1/4, node 1/2");
}

TEST(Topology, IsOneRankInABatchScriptAndSaysHowToHaveMore) {
  auto placement = placement_from_environment(with(batch_script("8")));
  ASSERT_TRUE(placement.ok()) << placement.status();
  EXPECT_EQ(text(placement->topology), "plain: rank 0/1, local 0/1, node 0/1");
  EXPECT_THAT(placement->notice, AllOf(HasSubstr("SLURM_NTASKS=8"), HasSubstr("srun")));
  EXPECT_EQ(placement_from_environment(with(batch_script("1")))->notice, "");
  EXPECT_EQ(placement_from_environment(with(srun("0", "2", "0", "0", "1", "2")))->notice, "");
  EXPECT_EQ(
      placement_from_environment(with(batch_script("8") + open_mpi("0", "8", "0", "8")))->notice,
      "");
}

TEST(Topology, CountsSlurmsTasksOnThisNode) {
  auto local = [](const char* rank, const char* world_size, const char* node, const char* nodes,
                  Variables more) {
    Variables variables = {{"SLURM_STEP_ID", "0"},       {"SLURM_PROCID", rank},
                           {"SLURM_NTASKS", world_size}, {"SLURM_LOCALID", "0"},
                           {"SLURM_NODEID", node},       {"SLURM_NNODES", nodes}};
    auto topology = topology_from_environment(with(variables + more));
    EXPECT_TRUE(topology.ok()) << topology.status();
    return topology.ok() ? topology->local_world_size : -1;
  };
  EXPECT_EQ(local("0", "8", "0", "2", {{"SLURM_NTASKS_PER_NODE", "4"}}), 4);
  EXPECT_EQ(local("0", "8", "0", "2", {{"SLURM_NTASKS_PER_NODE", "4(x2)"}}), 4);
  // Five tasks, at most four a node.
  EXPECT_EQ(local("4", "5", "1", "2", {{"SLURM_NTASKS_PER_NODE", "4"}}), 1);
  // The list of the allocation, of which this step uses a part.
  EXPECT_EQ(local("2", "4", "1", "2",
                  {{"SLURM_TASKS_PER_NODE", "8(x2)"}, {"SLURM_NTASKS_PER_NODE", "2"}}),
            2);
  EXPECT_EQ(local("2", "4", "1", "2", {}), 2);
}

// A step may use a part of its allocation, whose variables it inherits.
TEST(Topology, GoesByTheStepAndNotByTheAllocation) {
  const Variables step = {{"SLURM_STEP_ID", "0"},        {"SLURM_PROCID", "3"},
                          {"SLURM_LOCALID", "1"},        {"SLURM_NODEID", "1"},
                          {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_STEP_NUM_NODES", "2"}};
  const Variables allocation = {{"SLURM_NTASKS", "16"},
                                {"SLURM_NNODES", "4"},
                                {"SLURM_JOB_NUM_NODES", "4"},
                                {"SLURM_TASKS_PER_NODE", "4(x4)"}};
  const char* expected = "SLURM: rank 3/4, local 1/2, node 1/2";
  EXPECT_EQ(resolve(step + Variables{{"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}}), expected);
  EXPECT_EQ(resolve(step + allocation + Variables{{"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}}),
            expected);
  // Nothing is said of the tasks on each node but their number.
  EXPECT_EQ(resolve(step), expected);
}

TEST(Topology, ShowsNodesOnlyIfTheyAreAlike) {
  EXPECT_EQ(Topology::uniform(5, 2, 3).shape(), "2x3");
  EXPECT_EQ((Topology{.world_size = 5, .local_world_size = 3, .num_nodes = 2}.shape()), "5");
}

TEST(Topology, SurvivesExportAndImport) {
  for (const Variables& around : {Variables{}, open_mpi("1", "2", "1", "2"), batch_script("4"),
                                  srun("5", "6", "1", "2", "3", "2(x3)")}) {
    Environment environment = with(around);
    export_topology(Topology::uniform(5, 2, 3), environment);
    auto topology = topology_from_environment(environment);
    ASSERT_TRUE(topology.ok()) << topology.status();
    EXPECT_EQ(*topology, Topology::uniform(5, 2, 3));
  }
}

TEST(Topology, IsTheSameAfterItsPlacementIsWrittenBack) {
  Environment environment = with(srun("3", "4", "1", "1", "2", "2(x2)"));
  auto placement = placement_from_environment(environment);
  ASSERT_TRUE(placement.ok()) << placement.status();
  export_placement(*placement, environment);
  EXPECT_EQ(environment.get("RANK"), "3");
  EXPECT_EQ(environment.get("WORLD_SIZE"), "4");
  EXPECT_EQ(environment.get("LOCAL_RANK"), "1");
  EXPECT_EQ(environment.get("LOCAL_WORLD_SIZE"), "2");
  EXPECT_EQ(environment.get("MASTER_ADDR"), "n03");
  EXPECT_EQ(environment.get("MASTER_PORT"), "24711");
  auto again = placement_from_environment(environment);
  ASSERT_TRUE(again.ok()) << again.status();
  again->topology.source = placement->topology.source;
  EXPECT_EQ(again->topology, placement->topology);
}

TEST(Topology, NamesTheVariablesThatContradict) {
  struct Case {
    Variables variables;
    std::vector<const char*> expected;
  };
  for (const Case& c : std::vector<Case>{
           {{{"RANK", "2"}, {"WORLD_SIZE", "2"}}, {"RANK=2 is not below WORLD_SIZE=2"}},
           {{{"RANK", "0"}}, {"RANK is set but WORLD_SIZE is not"}},
           {{{"PMIX_RANK", "0"}}, {"PMIX_RANK is set but WORLD_SIZE is not"}},
           {{{"WORLD_SIZE", "4"}}, {"WORLD_SIZE is set but RANK is not"}},
           {{{"RANK", "x"}, {"WORLD_SIZE", "2"}}, {"RANK=\"x\" is not a number"}},
           {{{"RANK", "0"}, {"WORLD_SIZE", "0"}}, {"WORLD_SIZE=0: must be positive"}},
           {{{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, {"RANK=\"-1\" counts as unset"}},
           {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "4"}},
            {"LOCAL_WORLD_SIZE=4 is above WORLD_SIZE=2"}},
           {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "0"}},
            {"LOCAL_WORLD_SIZE=0: must be positive"}},
           {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "2"}},
            {"LOCAL_RANK=2 is not below LOCAL_WORLD_SIZE=2"}},
           {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"GROUP_RANK", "9"}},
            {"GROUP_RANK=9 is not below the number of nodes=1"}},
           {{{"RANK", "0"}, {"WORLD_SIZE", "99999999999"}}, {"WORLD_SIZE=\"99999999999\""}},
           // Two sources.
           {Variables{{"RANK", "0"}, {"WORLD_SIZE", "4"}} + open_mpi("3", "4", "3", "4"),
            {"RANK=0", "WORLD_SIZE=4", "OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4"}},
           {Variables{{"RANK", "0"}, {"WORLD_SIZE", "2"}} + open_mpi("3", "4", "3", "4"),
            {"RANK=0", "WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4"}},
           {Variables{{"RANK", "0"}, {"WORLD_SIZE", "4"}} + srun("3", "4", "3", "0", "1", "4"),
            {"RANK=0", "WORLD_SIZE=4", "SLURM_PROCID=3", "SLURM_STEP_NUM_TASKS=4"}},
           {pmi("0", "1", "0", "1") + open_mpi("3", "4", "3", "4"),
            {"PMI_RANK=0", "PMI_SIZE=1", "OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4"}},
           {Variables{{"RANK", "5"}} + open_mpi("1", "4", "1", "4"),
            {"RANK=5", "OMPI_COMM_WORLD_SIZE=4"}},
           {Variables{{"RANK", "0"}} + open_mpi("1", "4", "1", "4"),
            {"RANK=0", "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4"}},
           {Variables{{"WORLD_SIZE", "8"}} + open_mpi("1", "4", "1", "4"),
            {"WORLD_SIZE=8", "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4"}},
           {open_mpi("1", "4", "3", "2"),
            {"OMPI_COMM_WORLD_LOCAL_RANK=3", "OMPI_COMM_WORLD_LOCAL_SIZE=2"}},
           {srun("1", "4", "1", "0", "1", "4(x"), {"SLURM_STEP_TASKS_PER_NODE", "4(x"}},
       }) {
    const std::string message = resolve(c.variables);
    for (const char* expected : c.expected) EXPECT_THAT(message, HasSubstr(expected));
  }
}

TEST(Placement, MeetsOnThisMachineWhereItRunsAllRanks) {
  EXPECT_EQ(meet({}), ":0");
  EXPECT_EQ(meet(open_mpi("1", "4", "1", "4")), "127.0.0.1:29500");
  EXPECT_EQ(meet(pmi("1", "4", "1", "4") + Variables{{"MASTER_PORT", "1234"}}), "127.0.0.1:1234");
  EXPECT_EQ(meet(srun("1", "4", "1", "0", "1", "4")), "127.0.0.1:24711");
}

TEST(Placement, MeetsAtTheFirstHostOfASlurmStep) {
  EXPECT_EQ(meet(srun("6", "8", "2", "1", "2", "4(x2)")), "n03:24711");
  EXPECT_EQ(meet(srun("6", "8", "2", "1", "2", "4(x2)") +
                 Variables{{"PMI_RANK", "6"}, {"PMI_SIZE", "8"}}),
            "n03:24711");
}

TEST(Placement, PrefersWhatIsSet) {
  EXPECT_EQ(meet(torchrun("6", "8", "2", "4", "1") +
                 Variables{{"MASTER_ADDR", "head"}, {"MASTER_PORT", "1234"}}),
            "head:1234");
  EXPECT_EQ(meet(srun("6", "8", "2", "1", "2", "4(x2)") +
                 Variables{{"MASTER_ADDR", "head"}, {"MASTER_PORT", "1234"}}),
            "head:1234");
  EXPECT_EQ(meet(torchrun("6", "8", "2", "4", "1") + Variables{{"MASTER_ADDR", "head"}}),
            "head:29500");
}

TEST(Placement, TakesPortsFrom1To65535) {
  const auto with_port = [](const char* port) {
    return meet(torchrun("6", "8", "2", "4", "1") +
                Variables{{"MASTER_ADDR", "head"}, {"MASTER_PORT", port}});
  };
  EXPECT_EQ(with_port("1"), "head:1");
  EXPECT_EQ(with_port("65535"), "head:65535");
  for (const char* port : {"0", "65536", "-1", "x"}) {
    EXPECT_THAT(with_port(port), HasSubstr("is not a port from 1 to 65535")) << port;
  }
}

TEST(Placement, TakesAddressesWithoutBracketsAndPorts) {
  const auto with_address = [](const char* address) {
    return meet(torchrun("6", "8", "2", "4", "1") +
                Variables{{"MASTER_ADDR", address}, {"MASTER_PORT", "1234"}});
  };
  EXPECT_EQ(with_address("fe80::1%eth0"), "fe80::1%eth0:1234");
  for (const char* address : {"[::1]", "head:1234", "fe80::1:29500", "10.0.0.256"}) {
    EXPECT_THAT(with_address(address),
                AllOf(HasSubstr("MASTER_ADDR"), HasSubstr(address), HasSubstr("MASTER_PORT has")));
  }
}

TEST(Placement, SaysWhatToSetWhereNobodyKnowsTheAddress) {
  EXPECT_THAT(meet(open_mpi("6", "8", "2", "4")),
              AllOf(HasSubstr("8 ranks (Open MPI)"), HasSubstr("4 on this node"),
                    HasSubstr("MASTER_ADDR is not set")));
  // Without LOCAL_WORLD_SIZE it is unknown whether both ranks are on this machine.
  EXPECT_THAT(meet({{"RANK", "0"}, {"WORLD_SIZE", "2"}}),
              AllOf(HasSubstr("LOCAL_WORLD_SIZE"), HasSubstr("MASTER_ADDR is not set")));
  EXPECT_THAT(
      meet({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "99999"}}),
      HasSubstr("MASTER_PORT=\"99999\" is not a port"));
  EXPECT_THAT(
      meet(srun("6", "8", "2", "1", "2", "4(x2)") + Variables{{"SLURM_JOB_NODELIST", "n["}}),
      HasSubstr("\"n[\""));
}

}  // namespace
}  // namespace accelerate
