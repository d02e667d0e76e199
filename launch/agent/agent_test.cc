// An agent on one machine as its users meet it: real processes. What the launcher does with ranks
// in general is in launch/supervise/supervisor_test.cc, several machines are in network_test.cc.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "accelerate/platform/host_files.h"
#include "launch/testing/launcher_process.h"

namespace accelerate::launcher::agent {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kWaitForEver;
using testing::LauncherProcess;
using testing::lines_of;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

using Words = std::vector<std::string>;

std::unique_ptr<LauncherProcess> agent(const Words& options, const std::string& script,
                                       const testing::LauncherSetup& setup = {}) {
  const char* binary = std::getenv("ACCELERATE_AGENT_RUNNER");
  EXPECT_NE(binary, nullptr);
  Words argv = {binary};
  argv.insert(argv.end(), options.begin(), options.end());
  argv.insert(argv.end(), {"--", "/bin/sh", "-c", script});
  return std::make_unique<LauncherProcess>(argv, setup);
}

std::string content(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

constexpr char kSpeak[] = "echo out $RANK; echo err $RANK >&2";

TEST(Restarts, StartAllRanksAnewAsOftenAsAllowed) {
  auto run = agent({"processes=2", "max_restarts=2"},
                   "echo $RANK try $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS\n"
                   "[ $RANK = 1 ] && exit 3; exec sleep 1000");
  EXPECT_EQ(run->finish(), 3);
  for (const char* line :
       {"[rank 1] 1 try 0 of 2", "[rank 1] 1 try 1 of 2", "[rank 1] 1 try 2 of 2"}) {
    EXPECT_THAT(run->stdout_text(), HasSubstr(line));
  }
  EXPECT_THAT(run->stdout_text(), Not(HasSubstr("try 3")));
  EXPECT_THAT(run->stderr_text(),
              AllOf(HasSubstr("round 1, restart 1 of 2: 2 ranks on 1 machine\n"),
                    HasSubstr("no restart of 2 is left")));
  EXPECT_TRUE(run->everyone_is_gone());
}

TEST(Restarts, HaveAStoreOfTheirOwn) {
  auto run = agent({"processes=2", "max_restarts=1"},
                   "[ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ] && exec sleep 1000\n"
                   "[ $RANK = 1 ] && exit 0\n"
                   "ls -l /proc/$$/fd/$ACCELERATE_STORE_LISTEN_FD | grep -c socket:\n"
                   "exit $((1 - TORCHELASTIC_RESTART_COUNT))");
  EXPECT_EQ(run->finish(), 0);
  EXPECT_EQ(run->stdout_text(), "[rank 0] 1\n[rank 0] 1\n");
}

TEST(Restarts, LeaveNothingOfTheRoundBefore) {
  auto run = agent({"processes=2", "max_restarts=1"},
                   "if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then\n"
                   "  [ $RANK = 0 ] && { echo ready; read x <&8; }; exit 0\n"
                   "fi\n"
                   "setsid sh -c 'echo child $$; exec sleep 1000' & read x <&8; exit 1");
  std::vector<pid_t> children;
  for (const std::string& line : run->wait_for_lines("", 2)) {
    children.push_back(std::stoi(line.substr(line.rfind(' '))));
  }
  run->go();
  run->go();
  run->wait_for_lines("ready", 1);
  for (pid_t child : children) EXPECT_FALSE(testing::exists(child));
  run->go();
  EXPECT_EQ(run->finish(), 0);
}

TEST(Restarts, AreNoneAfterAnInterrupt) {
  auto run = agent({"processes=2", "max_restarts=5"},
                   absl::StrCat("trap 'exit 1' INT; echo ready; ", kWaitForEver));
  run->wait_for_lines("ready", 2);
  run->signal(SIGINT);
  EXPECT_EQ(run->finish(), 130);
  EXPECT_THAT(run->stderr_text(), Not(HasSubstr("round")));
}

// A single rank has the terminal, and with it Ctrl-C.
TEST(Restarts, AreNoneAfterCtrlCOnATerminal) {
  // The second script exits as a program does that handles SIGINT.
  for (const char* script : {"echo ready; exec sleep 1000", "exit 130"}) {
    int terminal = -1;
    const pid_t launcher = forkpty(&terminal, nullptr, nullptr, nullptr);
    ASSERT_GE(launcher, 0);
    if (launcher == 0) {
      const char* binary = std::getenv("ACCELERATE_AGENT_RUNNER");
      execl(binary, binary, "max_restarts=2", "--", "/bin/sh", "-c", script, nullptr);
      _exit(127);
    }
    std::string seen;
    size_t from = 0;
    char buffer[256];
    for (ssize_t size; (size = read(terminal, buffer, sizeof(buffer))) > 0;) {
      seen.append(buffer, size);
      for (size_t at; (at = seen.find("ready", from)) != seen.npos; from = at + 1) {
        ASSERT_EQ(write(terminal, "\x03", 1), 1);
      }
    }
    int status = 0;
    ASSERT_EQ(waitpid(launcher, &status, 0), launcher);
    close(terminal);
    EXPECT_EQ(WEXITSTATUS(status), 130) << seen;
    EXPECT_THAT(seen, Not(HasSubstr("round"))) << script;
  }
}

// Ranks that wait for one that does not come give up in their own time; then it goes with them.
TEST(Ranks, ThatNeverJoinDoNotHoldTheRun) {
  auto run = agent(
      {"processes=2"},
      absl::StrCat("[ $RANK = 0 ] && { echo rank 1 did not come >&2; exit 1; }; ", kWaitForEver));
  EXPECT_EQ(run->finish(), 1);
  EXPECT_THAT(run->stderr_text(), HasSubstr("  [rank 0] rank 1 did not come"));
  EXPECT_TRUE(run->everyone_is_gone());
}

TEST(Quiet, LeavesOnlyTheExitCode) {
  auto run =
      agent({"processes=2", "quiet=1", "max_restarts=1", "tee=3"}, "echo bad luck >&2; exit 5");
  EXPECT_EQ(run->finish(), 5);
  for (const std::string& line : lines_of(run->stderr_text()))
    EXPECT_EQ(line.substr(8), " bad luck");
}

TEST(Logs, KeepEveryRoundOfEveryRank) {
  const TemporaryFolder temporary;
  const std::string folder = temporary.path();
  auto run = agent({"processes=2", "max_restarts=1", "run_id=a/b", "log_dir=" + folder},
                   "echo try $TORCHELASTIC_RESTART_COUNT; echo err $RANK >&2\n"
                   "[ $RANK$TORCHELASTIC_RESTART_COUNT = 00 ] && exec sleep 1000\n"
                   "exit $((1 - TORCHELASTIC_RESTART_COUNT))");
  EXPECT_EQ(run->finish(), 0);
  for (const std::string round : {"0", "1"}) {
    EXPECT_EQ(content(folder + "/a_b/attempt_" + round + "/1/stdout.log"), "try " + round + "\n");
  }
  EXPECT_EQ(content(folder + "/a_b/attempt_1/0/stderr.log"), "err 0\n");
  // Without a word on what goes where, the console has it all as well.
  EXPECT_THAT(run->stdout_text(), HasSubstr("[rank 1] try 1\n"));
}

TEST(Logs, GoToFilesOnlyOrToBoth) {
  const TemporaryFolder temporary;
  const std::string folder = temporary.path();
  auto run = agent({"processes=2", "log_dir=" + folder, "redirects=1", "tee=2"}, kSpeak);
  EXPECT_EQ(run->finish(), 0);
  EXPECT_THAT(run->stdout_text(), IsEmpty());
  EXPECT_THAT(lines_of(run->stderr_text()),
              UnorderedElementsAre("[rank 0] err 0", "[rank 1] err 1"));
  EXPECT_EQ(content(folder + "/none/attempt_0/1/stdout.log"), "out 1\n");
  EXPECT_EQ(content(folder + "/none/attempt_0/1/stderr.log"), "err 1\n");
}

TEST(Logs, ShowOnlyTheRanksAskedFor) {
  auto run = agent({"processes=3", "only=1"}, kSpeak);
  EXPECT_EQ(run->finish(), 0);
  EXPECT_EQ(run->stdout_text(), "[rank 1] out 1\n");
  EXPECT_EQ(run->stderr_text(), "[rank 1] err 1\n");
}

TEST(Logs, AreNamedWhenARankFails) {
  const TemporaryFolder temporary;
  const std::string folder = temporary.path();
  auto run = agent({"processes=2", "log_dir=" + folder, "redirects=3"},
                   "[ $RANK = 0 ] && exec sleep 1000; echo bad luck >&2; exit 5");
  EXPECT_EQ(run->finish(), 5);
  EXPECT_THAT(run->stderr_text(),
              AllOf(HasSubstr("  [rank 1] bad luck\n"),
                    HasSubstr("all of it: " + folder + "/none/attempt_0/1/stderr.log\n")));
}

TEST(Logs, GoToATemporaryFolderIfNoneIsNamed) {
  const TemporaryFolder temporary;
  const std::string folder = temporary.path();
  auto run = agent({"redirects=3"}, kSpeak, {.environment = {"TMPDIR=" + folder}});
  EXPECT_EQ(run->finish(), 0);
  EXPECT_THAT(run->stdout_text(), IsEmpty());
  ASSERT_THAT(run->stderr_text(), HasSubstr("logs are in " + folder + "/accelerate_logs_"));
  std::string made = lines_of(run->stderr_text())[0];
  made = made.substr(made.find(folder));
  EXPECT_EQ(content(made + "/attempt_0/0/stdout.log"), "out 0\n");
}

TEST(Logs, OfAnEarlierRunStay) {
  const TemporaryFolder temporary;
  const std::string folder = temporary.path();
  for (const auto& [word, name] : {std::pair("first", "none"), {"second", "none.2"}}) {
    auto run = agent({"processes=2", "log_dir=" + folder}, absl::StrCat("echo ", word));
    EXPECT_EQ(run->finish(), 0);
    const bool is_new = std::string(word) == "second";
    EXPECT_EQ(run->stderr_text(),
              is_new ? "accelerate launch: logs are in " + folder + "/none.2\n" : "");
    EXPECT_EQ(content(absl::StrCat(folder, "/", name, "/attempt_0/1/stdout.log")),
              absl::StrCat(word, "\n"));
  }
  EXPECT_EQ(content(folder + "/none/attempt_0/0/stdout.log"), "first\n");
}

TEST(Logs, ThatCannotBeMadeAreNamed) {
  auto run = agent({"processes=2", "log_dir=/proc/nowhere"}, kSpeak);
  EXPECT_EQ(run->finish(), 1);
  EXPECT_THAT(
      lines_of(run->stderr_text()),
      ::testing::ElementsAre(HasSubstr("cannot make a folder for logs, /proc/nowhere/none")));
}

// The device that is always full stands for the disk; the first round puts it there.
TEST(Logs, OnAFullDiskDoNotStopTheRun) {
  const TemporaryFolder temporary;
  const std::string folder = temporary.path();
  auto run = agent({"processes=2", "log_dir=" + folder, "tee=3", "max_restarts=1"},
                   absl::StrCat("if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then\n"
                                "  [ $RANK = 1 ] && exec sleep 1000\n"
                                "  cd ",
                                folder,
                                "/none; mkdir -p attempt_1/0 attempt_1/1\n"
                                "  for rank in 0 1; do for name in stdout stderr; do\n"
                                "    ln -s /dev/full attempt_1/$rank/$name.log\n"
                                "  done; done; exit 1\n"
                                "fi; seq 1 1000; echo end $RANK >&2"));
  EXPECT_EQ(run->finish(), 0);
  EXPECT_EQ(lines_of(run->stdout_text()).size(), 2000u);
  int complaints = 0;
  for (const std::string& line : lines_of(run->stderr_text())) {
    complaints += line.find("No space left on device") != std::string::npos;
  }
  EXPECT_EQ(complaints, 1) << run->stderr_text();
}

TEST(Preflight, SaysWhatDoesNotFit) {
  const std::pair<Words, std::string> wrong[] = {
      {{"devices=4096"}, "its ranks need 4096; start fewer processes per machine, or use --cpu"},
      {{"processes=0"}, "processes per machine: 0 is not between 1 and 1024"},
      {{"nodes=2:1"}, "machines: 2:1 is not a range MIN:MAX"},
      {{"nodes=2"}, "a standalone run has one machine"},
      {{"max_restarts=-1"}, "--max_restarts -1 is negative"},
      {{"rendezvous=static", "nodes=2", "node_rank=0"}, "several machines need an endpoint"},
      {{"rendezvous=static", "nodes=2", "port=1"}, "--machine_rank -1 is not between 0 and 1"},
      {{"rendezvous=static", "nodes=2", "node_rank=2", "port=1"},
       "--machine_rank 2 is not between"},
      {{"rendezvous=static", "nodes=1:2", "node_rank=0", "port=1"}, "a fixed number of machines"},
      {{"join_timeout=soon"}, "--rdzv_conf join_timeout=soon is not a number of seconds"},
      {{"join_timeout=nan"}, "--rdzv_conf join_timeout=nan"},
      {{"keep_alive_interval=0"}, "keep_alive_interval has to be above 0"},
      {{"keep_alive_max_attempt=0"}, "keep_alive_max_attempt=0"},
      {{"is_host=maybe"}, "is_host=maybe is not true or false"},
      {{"join_timout=5"}, "--rdzv_conf: unknown key join_timout; did you mean join_timeout?"},
      {{"processes=2", "only=2"}, "this machine has no local rank 2; its ranks are 0 to 1"}};
  for (const auto& [options, reason] : wrong) {
    auto run = agent(options, "echo started");
    EXPECT_EQ(run->finish(), 1);
    EXPECT_THAT(run->stdout_text(), IsEmpty());
    EXPECT_THAT(lines_of(run->stderr_text()), ::testing::ElementsAre(HasSubstr(reason)));
  }
}

TEST(Environment, IsThatOfTorchrun) {
  auto run =
      agent({"run_id=my run"},
            "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK "
            "$GROUP_WORLD_SIZE $ROLE_NAME $ROLE_RANK $ROLE_WORLD_SIZE $MASTER_ADDR "
            "$TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS "
            "\"$TORCHELASTIC_RUN_ID\" $TORCHELASTIC_USE_AGENT_STORE ${ACCELERATE_SIMULATE-un}",
            {.environment = {"ACCELERATE_SIMULATE=2x4", "RANK=7"}});
  EXPECT_EQ(run->finish(), 0);
  EXPECT_EQ(run->stdout_text(), "0 0 1 1 0 1 default 0 1 127.0.0.1 0 0 my run False un\n");
}

}  // namespace
}  // namespace accelerate::launcher::agent
