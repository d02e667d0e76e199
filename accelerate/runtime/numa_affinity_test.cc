#include "accelerate/runtime/numa_affinity.h"

#include <sched.h>

#include <optional>
#include <set>
#include <string>
#include <string_view>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/process/real_runtime.h"
#include "accelerate/testing/fake_runtime.h"

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;

// "CPUs|nodes" of a rank, in the words of the report.
std::string place(const char* machine, int rank, int ranks, int near = -1) {
  const auto affinity =
      internal::plan_numa_affinity(Machine::synthetic(machine), rank, ranks, near);
  return affinity.to_string(rank);
}

TEST(NumaAffinity, TellsTheVersionOfHwloc) {
  EXPECT_THAT(internal::hwloc_version(), MatchesRegex("[1-9][0-9]*[.][0-9]+[.][0-9]+"));
}

TEST(NumaAffinity, GivesEachRankItsShareOfTheNodes) {
  const char* two_nodes = "numa:2 core:4 pu:1";
  EXPECT_EQ(place(two_nodes, 0, 2), "local rank 0 runs on CPUs 0-3 of NUMA node 0");
  EXPECT_EQ(place(two_nodes, 1, 2), "local rank 1 runs on CPUs 4-7 of NUMA node 1");
  EXPECT_EQ(place(two_nodes, 1, 4), "local rank 1 runs on CPUs 0-3 of NUMA node 0");
  EXPECT_EQ(place(two_nodes, 2, 4), "local rank 2 runs on CPUs 4-7 of NUMA node 1");
  EXPECT_EQ(place(two_nodes, 0, 1), "local rank 0 runs on CPUs 0-7 of NUMA node 0-1");
}

TEST(NumaAffinity, LeavesNoNodeOutAndNoneCrowded) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    std::multiset<int> used;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto affinity = internal::plan_numa_affinity(
          Machine::synthetic("package:2 numa:2 core:2 pu:2"), rank, ranks, -1);
      used.insert(affinity.numa_nodes.begin(), affinity.numa_nodes.end());
    }
    for (int node = 0; node < 4; ++node) {
      EXPECT_GE(used.count(node), 1) << ranks << " ranks, node " << node;
      EXPECT_LE(used.count(node), (ranks + 3) / 4) << ranks << " ranks, node " << node;
    }
  }
}

TEST(NumaAffinity, PrefersTheNodeOfTheDevice) {
  EXPECT_EQ(place("numa:2 core:4 pu:1", 0, 2, 1), "local rank 0 runs on CPUs 4-7 of NUMA node 1");
}

TEST(NumaAffinity, DoesNothingWithOneNode) {
  EXPECT_THAT(place("core:4 pu:2", 0, 2), HasSubstr("one NUMA node"));
  EXPECT_THAT(place("numa:1 core:4 pu:1", 0, 2), HasSubstr("one NUMA node"));
}

TEST(NumaAffinity, RefusesARankThatIsNotHere) {
  EXPECT_THROW(place("numa:2 core:4 pu:1", 2, 2), c10::ValueError);
  EXPECT_THROW(place("numa:2 core:4 pu:1", -1, 2), c10::ValueError);
  EXPECT_THROW(Machine::synthetic("two sockets"), c10::ValueError);
}

TEST(NumaAffinity, CountsCoresAndThreads) {
  const Machine machine = Machine::synthetic("numa:2 core:4 pu:2");
  EXPECT_EQ(machine.num_cores, 8);
  EXPECT_EQ(machine.num_cpus, 16);
  EXPECT_EQ(machine.domains.size(), 2);
  EXPECT_EQ(machine.domain_near("ffff:ff:1f.7"), -1);
}

Environment one_rank() {
  Environment environment;
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
                           "ACCELERATE_DEBUG_MODE", "ACCELERATE_TORCH_DEVICE"}) {
    environment.unset(name);
  }
  environment.set("RANK", "0");
  environment.set("WORLD_SIZE", "1");
  return environment;
}

class ConsoleRuntime : public FakeRuntime {
 public:
  ~ConsoleRuntime() override { clear_shared(); }
  void write_console(ConsoleStream stream, std::string_view text) override {
    EXPECT_EQ(stream, ConsoleStream::kErr);
    written += text;
  }
  std::string written;
};

// Whether it is said follows from the argument, else from the environment.
TEST(NumaAffinity, SaysWhatItDidIfItIsAsked) {
  const std::string said = "local rank 0 is not bound to CPUs: it shares its process";
  ConsoleRuntime runtime;
  runtime.environment().unset("ACCELERATE_DEBUG_MODE");
  override_numa_affinity(0, std::nullopt, runtime);
  EXPECT_EQ(runtime.written, "");
  override_numa_affinity(0, true, runtime);
  EXPECT_THAT(runtime.written, HasSubstr(said));
  runtime.written.clear();
  runtime.environment().set("ACCELERATE_DEBUG_MODE", "true");
  override_numa_affinity(0, false, runtime);
  EXPECT_EQ(runtime.written, "");
  override_numa_affinity(0, std::nullopt, runtime);
  EXPECT_THAT(runtime.written, HasSubstr(said));
}

cpu_set_t allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  return set;
}

// One rank may use all nodes: binding it changes nothing, with however many nodes.
TEST(NumaAffinity, KeepsALoneRanksCpusOnThisMachine) {
  auto runtime = RealRuntime::from_environment(one_rank());
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  const cpu_set_t before = allowed_cpus();
  const NumaAffinity affinity = set_numa_affinity(0, true, **runtime);
  const cpu_set_t after = allowed_cpus();
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
  EXPECT_EQ(affinity.bound, Machine::here().domains.size() > 1);
  EXPECT_EQ(affinity.cpus.empty(), !affinity.bound);
}

TEST(NumaAffinity, KeepsItsFirstAnswerUntilItIsOverridden) {
  auto runtime = RealRuntime::from_environment(one_rank());
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  const NumaAffinity first = set_numa_affinity(0, false, **runtime);
  EXPECT_EQ(set_numa_affinity(7, false, **runtime).to_string(0), first.to_string(0));
  EXPECT_THROW(override_numa_affinity(7, false, **runtime), c10::ValueError);
}

TEST(NumaAffinity, BindsTheProcess) {
  const cpu_set_t before = allowed_cpus();
  const Machine machine = Machine::here();
  ASSERT_FALSE(machine.domains.empty());
  const int cpu = machine.domains.front().cpus.front();
  bind_process({cpu});
  const cpu_set_t bound = allowed_cpus();
  sched_setaffinity(0, sizeof(before), &before);
  EXPECT_EQ(CPU_COUNT(&bound), 1);
  EXPECT_TRUE(CPU_ISSET(cpu, &bound));
}

}  // namespace
}  // namespace accelerate
