// Agents on several machines as their users meet them: real processes, in network namespaces.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "launch/testing/launcher_process.h"
#include "launch/testing/network.h"

namespace accelerate::launcher::agent {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kWaitForEver;
using testing::LauncherProcess;
using testing::lines_of;
using testing::Network;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

using Words = std::vector<std::string>;

// In a namespace of its own a port is free.
constexpr char kPort[] = "port=4000";

std::unique_ptr<LauncherProcess> agent(const Network& network, int machine, const Words& options,
                                       const std::string& script) {
  const char* binary = std::getenv("ACCELERATE_AGENT_RUNNER");
  EXPECT_NE(binary, nullptr);
  Words argv = {binary, kPort, "kill_grace_ms=2000"};
  argv.insert(argv.end(), options.begin(), options.end());
  argv.insert(argv.end(), {"--", "/bin/sh", "-c", script});
  return std::make_unique<LauncherProcess>(
      argv, testing::LauncherSetup{.before_exec = [&] { network.enter(machine); }});
}

Words static_run(const std::string& host, int nodes, int node_rank, const Words& more = {}) {
  Words words = {"rendezvous=static", absl::StrCat("nodes=", nodes),
                 absl::StrCat("node_rank=", node_rank), "host=" + host};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Words elastic_run(const std::string& host, const std::string& nodes, const Words& more = {}) {
  Words words = {"rendezvous=elastic", "nodes=" + nodes, "host=" + host, "last_call_timeout=0"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(Static, GivesEveryRankItsPlace) {
  Network network(2);
  for (const std::string& host : {network.address(0), network.address6(0)}) {
    const std::string script =
        "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE "
        "$ROLE_RANK/$ROLE_WORLD_SIZE $MASTER_ADDR ${ACCELERATE_STORE_LISTEN_FD:+store}.";
    // The machine that does not listen is there first, and of another size.
    auto second = agent(network, 1, static_run(host, 2, 1, {"processes=1"}), script);
    auto first = agent(network, 0, static_run(host, 2, 0, {"processes=2"}), script);
    EXPECT_EQ(first->finish(), 0);
    EXPECT_EQ(second->finish(), 0);
    EXPECT_THAT(lines_of(first->stdout_text()),
                UnorderedElementsAre("[rank 0] 0/3 0/2 0/2 0/3 " + host + " store.",
                                     "[rank 1] 1/3 1/2 0/2 1/3 " + host + " ."));
    EXPECT_THAT(lines_of(second->stdout_text()),
                UnorderedElementsAre("[rank 2] 2/3 0/1 1/2 2/3 " + host + " ."));
    EXPECT_THAT(first->stderr_text() + second->stderr_text(), IsEmpty());
  }
}

TEST(Static, StopsEveryMachineWhenARankFails) {
  Network network(2);
  const std::string script = absl::StrCat(
      "echo ready; [ $RANK = 1 ] && { read x <&8; echo bad >&2; "
      "kill -9 $$; }; ",
      kWaitForEver);
  auto first = agent(network, 0, static_run(network.address(0), 2, 0), script);
  auto second = agent(network, 1, static_run(network.address(0), 2, 1), script);
  first->wait_for_lines("ready", 1);
  second->wait_for_lines("ready", 1);
  second->go();
  EXPECT_EQ(first->finish(), 137);
  EXPECT_EQ(second->finish(), 137);
  for (const LauncherProcess* each : {first.get(), second.get()}) {
    EXPECT_THAT(each->stderr_text(),
                AllOf(HasSubstr("accelerate launch: rank 1 (pid "),
                      HasSubstr(", local rank 0 on node1) was killed by signal 9 (Killed)")));
  }
  EXPECT_THAT(second->stderr_text(), HasSubstr("  [rank 1] bad\n"));
  EXPECT_TRUE(first->everyone_is_gone());
  EXPECT_TRUE(second->everyone_is_gone());
}

TEST(Static, StartsAllAnewAfterAFailure) {
  Network network(2);
  const Words more = {"max_restarts=1"};
  const std::string script = absl::StrCat(
      "if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then echo again $RANK; exit 0; fi; echo ready; "
      "[ $RANK = 0 ] && { read x <&8; exit 3; }; ",
      kWaitForEver);
  auto first = agent(network, 0, static_run(network.address(0), 2, 0, more), script);
  auto second = agent(network, 1, static_run(network.address(0), 2, 1, more), script);
  first->wait_for_lines("ready", 1);
  second->wait_for_lines("ready", 1);
  first->go();
  EXPECT_EQ(first->finish(), 0);
  EXPECT_EQ(second->finish(), 0);
  EXPECT_EQ(first->stdout_text(), "[rank 0] again 0\n");
  EXPECT_EQ(second->stdout_text(), "[rank 1] again 1\n");
  EXPECT_THAT(second->stderr_text(), HasSubstr("round 1, restart 1 of 1: 2 ranks on 2 machines"));
}

TEST(Static, SaysThatNoRestartIsLeft) {
  Network network(2);
  const Words more = {"max_restarts=1"};
  auto first = agent(network, 0, static_run(network.address(0), 2, 0, more), "exit 4");
  auto second = agent(network, 1, static_run(network.address(0), 2, 1, more), kWaitForEver);
  EXPECT_EQ(first->finish(), 4);
  EXPECT_EQ(second->finish(), 4);
  EXPECT_THAT(second->stderr_text(), HasSubstr("no restart of 1 is left"));
}

// The agent of the other machine is killed: its ranks die with it, and this machine's are stopped.
TEST(Static, EndsWhenAnotherAgentIsKilled) {
  Network network(2);
  for (const int killed : {0, 1}) {
    const std::string script = absl::StrCat("echo ready; ", kWaitForEver);
    std::unique_ptr<LauncherProcess> agents[2];
    for (const int i : {0, 1}) {
      agents[i] = agent(network, i, static_run(network.address(0), 2, i), script);
    }
    for (const auto& each : agents) each->wait_for_lines("ready", 1);
    agents[killed]->signal(SIGKILL);
    EXPECT_TRUE(agents[killed]->everyone_is_gone());
    LauncherProcess& left = *agents[1 - killed];
    EXPECT_EQ(left.finish(), 1);
    EXPECT_THAT(left.stderr_text(), HasSubstr(killed == 1 ? "machine node1 was lost"
                                                          : "lost the machine at 10.77.0.1:4000"));
    EXPECT_TRUE(left.everyone_is_gone());
  }
}

TEST(Static, EndsWhenAMachineDisappearsWithoutAWord) {
  Network network(2);
  const Words more = {"keep_alive_interval=0.2", "keep_alive_max_attempt=3"};
  const std::string script = absl::StrCat("echo ready; ", kWaitForEver);
  auto first = agent(network, 0, static_run(network.address(0), 2, 0, more), script);
  auto second = agent(network, 1, static_run(network.address(0), 2, 1, more), script);
  first->wait_for_lines("ready", 1);
  second->wait_for_lines("ready", 1);
  network.cut(1);
  EXPECT_EQ(first->finish(), 1);
  EXPECT_EQ(second->finish(), 1);
  EXPECT_THAT(first->stderr_text(), HasSubstr("machine node1 was lost: it does not answer"));
  EXPECT_THAT(second->stderr_text(), HasSubstr("lost the machine at 10.77.0.1:4000"));
  EXPECT_TRUE(first->everyone_is_gone());
  EXPECT_TRUE(second->everyone_is_gone());
}

TEST(Static, EndsEverywhereWhenInterruptedOnce) {
  Network network(2);
  for (const int interrupted : {0, 1}) {
    const std::string script =
        absl::StrCat("trap 'echo asked; exit 0' INT TERM; echo ready; ", kWaitForEver);
    std::unique_ptr<LauncherProcess> agents[2];
    for (const int i : {0, 1}) {
      agents[i] = agent(network, i, static_run(network.address(0), 2, i), script);
    }
    for (const auto& each : agents) each->wait_for_lines("ready", 1);
    agents[interrupted]->signal(SIGINT);
    for (const auto& each : agents) {
      EXPECT_EQ(each->finish(), 130);
      EXPECT_THAT(each->stdout_text(), HasSubstr("asked"));
      EXPECT_THAT(each->stderr_text(), HasSubstr("received signal 2 (Interrupt)"));
      EXPECT_TRUE(each->everyone_is_gone());
    }
  }
}

TEST(Static, KillsAtOnceWhenInterruptedTwice) {
  Network network(2);
  const std::string script = absl::StrCat("trap 'echo asked' INT TERM; echo ready; ", kWaitForEver);
  auto first =
      agent(network, 0, static_run(network.address(0), 2, 0, {"kill_grace_ms=1000000"}), script);
  auto second = agent(network, 1, static_run(network.address(0), 2, 1), script);
  first->wait_for_lines("ready", 1);
  second->wait_for_lines("ready", 1);
  first->signal(SIGINT);
  first->wait_for_lines("asked", 1);
  first->signal(SIGINT);
  EXPECT_EQ(first->finish(), 130);
  EXPECT_TRUE(first->everyone_is_gone());
  // Its own time to stop runs out.
  EXPECT_NE(second->finish(), 0);
  EXPECT_TRUE(second->everyone_is_gone());
}

TEST(Static, NamesTheMachinesThatDidNotCome) {
  Network network(2);
  auto first = agent(network, 0, static_run(network.address(0), 3, 0, {"join_timeout=1"}), "true");
  auto third = agent(network, 1, static_run(network.address(0), 3, 2, {"join_timeout=1"}), "true");
  for (LauncherProcess* each : {first.get(), third.get()}) {
    EXPECT_EQ(each->finish(), 1);
    EXPECT_THAT(each->stdout_text(), IsEmpty());
  }
  EXPECT_THAT(first->stderr_text(),
              HasSubstr("not enough machines within 1s: 2 of 3 machines came: node0 (machine_rank "
                        "0), node1 (machine_rank 2); missing: machine_rank 1\n"));
}

TEST(Static, WaitsForTheMachineThatListensOnlySoLong) {
  Network network(2);
  auto second = agent(network, 1, static_run(network.address(0), 2, 1, {"join_timeout=1"}), "true");
  EXPECT_EQ(second->finish(), 1);
  EXPECT_THAT(second->stderr_text(), HasSubstr("no launcher listens at 10.77.0.1:4000 after 1s"));
}

TEST(Static, CanBeInterruptedWhileItWaits) {
  Network network(2);
  auto first = agent(network, 0, static_run(network.address(0), 3, 0), "true");
  auto third = agent(network, 1, static_run(network.address(0), 3, 2), "true");
  first->wait_for_error("waiting for machines: 2 of 3 machines came");
  third->signal(SIGINT);
  EXPECT_EQ(third->finish(), 130);
  EXPECT_EQ(first->finish(), 130);
  EXPECT_THAT(first->stderr_text(), HasSubstr("machine node1 left: received signal 2 (Interrupt)"));
  auto alone = agent(network, 1, static_run(network.address(0), 3, 2), "true");
  alone->wait_for_error("waiting for the launcher of the machine at 10.77.0.1:4000");
  alone->signal(SIGTERM);
  EXPECT_EQ(alone->finish(), 143);
}

TEST(Static, SaysThatAMachineCannotBeReached) {
  Network network(2);
  for (const char* host : {"10.77.0.99", "192.0.2.1", "no-such-host.invalid"}) {
    auto second = agent(network, 1, static_run(host, 2, 1), "true");
    EXPECT_EQ(second->finish(), 1);
    const Words lines = lines_of(second->stderr_text());
    ASSERT_EQ(lines.size(), 1u) << second->stderr_text();
    EXPECT_THAT(lines[0], AllOf(HasSubstr(host), HasSubstr("; check the ")));
  }
}

TEST(Static, SaysThatThePortIsTaken) {
  Network network(1);
  auto owner = agent(network, 0, static_run(network.address(0), 2, 0), "true");
  // The second owner of the port cannot be before the first one listens.
  owner->wait_for_error("waiting for machines");
  auto other = agent(network, 0, static_run(network.address(0), 2, 0), "true");
  EXPECT_EQ(other->finish(), 1);
  EXPECT_THAT(other->stderr_text(),
              AllOf(HasSubstr("cannot listen on port 4000 of 10.77.0.1: Address already in use"),
                    HasSubstr("choose another port")));
}

TEST(Static, RefusesMachinesThatDoNotFit) {
  Network network(2);
  auto first = agent(network, 0, static_run(network.address(0), 2, 0), "true");
  const std::pair<Words, std::string> wrong[] = {
      {static_run(network.address(0), 3, 1), "it expects 3 to 3 machines and node0 expects 2 to 2"},
      {static_run(network.address(0), 2, 1, {"run_id=other"}), "its run is 'other'"},
      {static_run(network.address(0), 2, 1, {"max_restarts=2"}), "it allows 2 restarts"},
      {static_run(network.address(0), 2, 0, {"is_host=false"}), "its rank 0 (machine_rank) is"}};
  for (const auto& [options, reason] : wrong) {
    auto second = agent(network, 1, options, "true");
    EXPECT_EQ(second->finish(), 1);
    EXPECT_THAT(second->stderr_text(), HasSubstr(reason));
  }
  // None of them has done any harm.
  auto second = agent(network, 1, static_run(network.address(0), 2, 1), "true");
  EXPECT_EQ(second->finish(), 0);
  EXPECT_EQ(first->finish(), 0);
}

TEST(Elastic, TakesAMachineInAndLetsItGo) {
  Network network(2);
  const std::string script = absl::StrCat(
      "echo restarts $TORCHELASTIC_RESTART_COUNT rank $RANK of $WORLD_SIZE; ", kWaitForEver);
  const Words options = elastic_run(network.address(0), "1:2");
  auto first = agent(network, 0, options, script);
  first->wait_for_lines("restarts 0 rank 0 of 1", 1);
  auto second = agent(network, 1, options, script);
  first->wait_for_lines("restarts 0 rank 0 of 2", 1);
  second->wait_for_lines("restarts 0 rank 1 of 2", 1);
  second->signal(SIGKILL);
  EXPECT_TRUE(second->everyone_is_gone());
  first->wait_for_lines("restarts 0 rank 0 of 1", 1);
  first->wait_for_error("machine node1 was lost");
  first->signal(SIGTERM);
  EXPECT_EQ(first->finish(), 143);
  EXPECT_TRUE(first->everyone_is_gone());
}

TEST(Elastic, CountsFailuresOnly) {
  Network network(2);
  const Words options = elastic_run(network.address(0), "2", {"max_restarts=1"});
  const std::string script =
      "if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then echo again $RANK; exit 0; fi\n"
      "[ $RANK = 1 ] && exit 9; exec sleep 1000";
  auto first = agent(network, 0, options, script);
  auto second = agent(network, 1, options, script);
  EXPECT_EQ(first->finish(), 0);
  EXPECT_EQ(second->finish(), 0);
  EXPECT_THAT(first->stdout_text() + second->stdout_text(),
              AllOf(HasSubstr("again 0"), HasSubstr("again 1")));
}

TEST(Elastic, TellsOnceWhyItEnds) {
  Network network(2);
  const Words options = elastic_run(network.address(0), "2");
  auto first = agent(network, 0, options, "[ $RANK = 0 ] && exec sleep 1000; echo bad >&2; exit 9");
  auto second =
      agent(network, 1, options, "[ $RANK = 0 ] && exec sleep 1000; echo bad >&2; exit 9");
  EXPECT_EQ(first->finish(), 9);
  EXPECT_EQ(second->finish(), 9);
  for (const LauncherProcess* each : {first.get(), second.get()}) {
    int told = 0;
    for (const std::string& line : lines_of(each->stderr_text())) {
      told += line.find("exited with code 9") != std::string::npos;
    }
    EXPECT_EQ(told, 1) << each->stderr_text();
  }
}

// With the endpoint's machine goes what keeps the run together.
TEST(Elastic, EndsWhenTheServerIsGone) {
  Network network(2);
  const Words options = elastic_run(network.address(0), "1:2");
  const std::string script = absl::StrCat("echo of $WORLD_SIZE; ", kWaitForEver);
  auto first = agent(network, 0, options, script);
  first->wait_for_lines("of 1", 1);
  auto second = agent(network, 1, options, script);
  second->wait_for_lines("of 2", 1);
  first->signal(SIGKILL);
  EXPECT_EQ(second->finish(), 1);
  EXPECT_THAT(second->stderr_text(),
              HasSubstr("lost the machine at 10.77.0.1:4000 that keeps the run together"));
  EXPECT_TRUE(first->everyone_is_gone());
  EXPECT_TRUE(second->everyone_is_gone());
}

TEST(Elastic, KeepsSpareMachinesUntilTheyAreNeeded) {
  Network network(3);
  const Words options = elastic_run(network.address(0), "2");
  const std::string script = absl::StrCat("echo rank $RANK on `hostname`; ", kWaitForEver);
  auto first = agent(network, 0, options, script);
  auto second = agent(network, 1, options, script);
  first->wait_for_lines("on node0", 1);
  second->wait_for_lines("on node1", 1);
  auto spare = agent(network, 2, options, script);
  second->signal(SIGKILL);
  spare->wait_for_lines("rank 1 on node2", 1);
  first->wait_for_lines("rank 0 on node0", 1);
  first->signal(SIGINT);
  EXPECT_EQ(first->finish(), 130);
  EXPECT_EQ(spare->finish(), 130);
  EXPECT_TRUE(spare->everyone_is_gone());
}

}  // namespace
}  // namespace accelerate::launcher::agent
