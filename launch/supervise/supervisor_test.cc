// The launcher as its users meet it: the real binary, real processes, shell scripts as ranks.
//
// Nothing here waits for a time to pass (launch/testing/launcher_process.h).

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "accelerate/platform/host_files.h"
#include "launch/process/socket_address.h"
#include "launch/supervise/rank_group.h"
#include "launch/testing/launcher_process.h"

namespace accelerate::launcher::supervise {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using testing::exists;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kWaitForEver;
using testing::lines_of;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

class Launcher : public testing::LauncherProcess {
 public:
  explicit Launcher(std::vector<std::string> args, std::vector<int> ignored_signals = {})
      : LauncherProcess(with_binary(std::move(args)), {.ignored_signals = ignored_signals}) {}

 private:
  static std::vector<std::string> with_binary(std::vector<std::string> args) {
    const char* binary = std::getenv("ACCELERATE_LAUNCHER");
    EXPECT_NE(binary, nullptr);
    args.insert(args.begin(), binary);
    return args;
  }
};

Launcher ranks(int count, const std::string& script, std::vector<std::string> options = {}) {
  std::vector<std::string> args = {"launch", absl::StrCat("--num_processes=", count)};
  args.insert(args.end(), options.begin(), options.end());
  args.insert(args.end(), {"/bin/sh", "-c", script});
  return Launcher(std::move(args));
}

TEST(Launch, MarksTheLinesOfEveryRankAndKeepsStreamsApart) {
  Launcher launcher = ranks(2, "echo out $RANK of $WORLD_SIZE; printf 'err %s' $LOCAL_RANK >&2");
  EXPECT_EQ(launcher.finish(), 0);
  EXPECT_THAT(lines_of(launcher.stdout_text()),
              UnorderedElementsAre("[rank 0] out 0 of 2", "[rank 1] out 1 of 2"));
  EXPECT_THAT(lines_of(launcher.stderr_text()),
              UnorderedElementsAre("[rank 0] err 0", "[rank 1] err 1"));
}

TEST(Launch, LosesAndReordersNothingOfALotOfOutput) {
  Launcher launcher = ranks(2, "seq 1 50000");
  EXPECT_EQ(launcher.finish(), 0);
  int next[2] = {1, 1};
  for (const std::string& line : lines_of(launcher.stdout_text())) {
    const int rank = line[6] - '0';
    ASSERT_EQ(line, absl::StrCat("[rank ", rank, "] ", next[rank]++));
  }
  EXPECT_EQ(next[0], 50001);
  EXPECT_EQ(next[1], 50001);
}

TEST(Launch, LeavesTheStreamsOfASingleRankAlone) {
  Launcher launcher = ranks(1, "cat; echo \"rank $RANK\" >&2");
  launcher.send_input("no newline");
  EXPECT_EQ(launcher.finish(), 0);
  EXPECT_EQ(launcher.stdout_text(), "no newline");
  EXPECT_EQ(launcher.stderr_text(), "rank 0\n");
}

TEST(Launch, PassesArgumentsOnUntouched) {
  Launcher launcher({"launch", "/bin/sh", "-c", "printf '<%s>' \"$@\"", "sh", "--help", "--", "",
                     "--num_processes", "a b", "[1,2]", "[]", "{}"});
  EXPECT_EQ(launcher.finish(), 0);
  EXPECT_EQ(launcher.stdout_text(), "<--help><--><><--num_processes><a b><[1,2]><[]><{}>");
}

TEST(Launch, NamesTheRankThatFailedAndRepeatsItsLastLines) {
  Launcher launcher = ranks(3,
                            "[ $RANK = 1 ] || exec sleep 1000\n"
                            "echo pid $$; seq 1 12 >&2; exit 3");
  std::vector<std::string> said = launcher.wait_for_lines("", 1);
  EXPECT_EQ(launcher.finish(), 3);
  ASSERT_THAT(said, ElementsAre(StartsWith("[rank 1] pid ")));
  const std::string pid = lines_of(said[0].substr(said[0].rfind(' ') + 1))[0];
  EXPECT_THAT(launcher.stderr_text(),
              HasSubstr("accelerate launch: rank 1 (pid " + pid + ", local rank 1 on " +
                        host_name() + ") exited with code 3; stopped the other ranks\n"));
  EXPECT_THAT(launcher.stderr_text(), HasSubstr("standard error:\n  [rank 1] 3\n  [rank 1] 4\n"));
  EXPECT_THAT(launcher.stderr_text(), Not(HasSubstr("  [rank 1] 2\n")));
  EXPECT_TRUE(launcher.everyone_is_gone());
}

// No rank is left that could hold the launcher up, so this shows what it makes of a signal alone.
TEST(Launch, FailsWhereASignalKilledEveryRank) {
  for (const int count : {1, 2}) {
    Launcher launcher = ranks(count, "kill -9 $$");
    EXPECT_EQ(launcher.finish(), 137) << count;
    EXPECT_THAT(launcher.stderr_text(), HasSubstr("was killed by signal 9 (Killed)")) << count;
  }
}

// Three ranks that each write an error as accelerate::run does, and end when all have.
Launcher failing_ranks(const TemporaryFolder& folder, const std::string& error) {
  return ranks(
      3, absl::StrCat("cd ", folder.path(""), "; printf \"accelerate: rank $RANK failed: ", error,
                      "\" >&2; : >$RANK; while [ ! -e 0 ] || [ ! -e 1 ] || "
                      "[ ! -e 2 ]; do sleep 0.01; done; exit 4"));
}

size_t count_of(absl::string_view text, absl::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Launch, SaysOnceWhatSeveralRanksFailWith) {
  const TemporaryFolder folder;
  Launcher launcher = failing_ranks(folder, "no tracker\\nsecond line\\n");
  EXPECT_EQ(launcher.finish(), 4);
  const std::string said = launcher.stderr_text();
  EXPECT_EQ(count_of(said, "no tracker"), 1) << said;
  EXPECT_EQ(count_of(said, "second line"), 1) << said;
  EXPECT_THAT(said, ::testing::ContainsRegex(
                        "\\[rank ([012])\\] accelerate: rank [012] failed: no tracker\n"
                        "\\[rank [012]\\] second line\n\\[rank [012]\\] also failed: rank"));
  EXPECT_THAT(said, HasSubstr("exited with code 4; stopped the other ranks\n"));
  EXPECT_THAT(said, Not(HasSubstr("last lines of")));
}

TEST(Launch, SaysWhatEachRankFailsWithWhereTheyDiffer) {
  const TemporaryFolder folder;
  Launcher launcher = failing_ranks(folder, "$((RANK / 2)) is odd");
  EXPECT_EQ(launcher.finish(), 4);
  const std::string said = launcher.stderr_text();
  EXPECT_EQ(count_of(said, " failed: 0 is odd\n"), 1) << said;
  EXPECT_EQ(count_of(said, "[rank 2] accelerate: rank 2 failed: 1 is odd\n"), 1) << said;
  EXPECT_THAT(said, ::testing::ContainsRegex("\\[rank [01]\\] also failed: rank [01]\n"));
}

TEST(Launch, KeepsTheErrorOfOneRankWithItsLines) {
  Launcher launcher = ranks(2,
                            "[ $RANK = 1 ] || exec sleep 1000; echo before >&2; "
                            "echo accelerate: rank 1 failed: no file >&2; exit 1");
  EXPECT_EQ(launcher.finish(), 1);
  EXPECT_THAT(launcher.stderr_text(),
              StartsWith("[rank 1] before\n[rank 1] accelerate: rank 1 failed: no file\n"
                         "accelerate launch: rank 1 (pid "));
  EXPECT_EQ(count_of(launcher.stderr_text(), "no file"), 1);
}

TEST(Launch, NamesTheSignalThatKilledARank) {
  Launcher launcher = ranks(2, "[ $RANK = 0 ] && exec sleep 1000; kill -9 $$");
  EXPECT_EQ(launcher.finish(), 137);
  EXPECT_THAT(launcher.stderr_text(),
              AllOf(HasSubstr("rank 1 (pid "), HasSubstr("was killed by signal 9 (Killed)")));
}

TEST(Launch, DoesNotBlameRanksThatItStopped) {
  Launcher launcher = ranks(3, absl::StrCat("trap 'exit 9' TERM; echo ready\n"
                                            "if [ $RANK = 2 ]; then read x <&8; exit 4; fi; ",
                                            kWaitForEver));
  launcher.wait_for_lines("ready", 3);
  launcher.go();
  EXPECT_EQ(launcher.finish(), 4);
  EXPECT_THAT(launcher.stderr_text(), HasSubstr("rank 2"));
  EXPECT_THAT(launcher.stderr_text(), Not(HasSubstr("code 9")));
}

TEST(Launch, ReportsTheFailureOfASingleRank) {
  Launcher launcher = ranks(1, "exit 7");
  EXPECT_EQ(launcher.finish(), 7);
  EXPECT_THAT(launcher.stderr_text(), HasSubstr("rank 0 (pid "));
  EXPECT_THAT(launcher.stderr_text(), HasSubstr("exited with code 7\n"));
}

// Rank 0 has a child that left for a session of its own; both are gone when the launcher is.
TEST(Launch, LeavesNothingBehindAfterAFailure) {
  Launcher launcher = ranks(2,
                            "if [ $RANK = 1 ]; then read x <&8; exit 1; fi\n"
                            "trap '' TERM\n"
                            "setsid sh -c 'echo child $$; exec sleep 1000' &\n"
                            "sleep 1000 & echo child $!; wait",
                            {"--kill_grace=0"});
  std::vector<pid_t> children;
  for (const std::string& line : launcher.wait_for_lines("", 2)) {
    pid_t pid = 0;
    ASSERT_TRUE(absl::SimpleAtoi(line.substr(line.rfind(' ')), &pid)) << line;
    EXPECT_TRUE(exists(pid));
    children.push_back(pid);
  }
  launcher.go();
  EXPECT_EQ(launcher.finish(), 1);
  for (pid_t child : children) EXPECT_FALSE(exists(child));
  EXPECT_TRUE(launcher.everyone_is_gone());
}

TEST(Launch, EndsThoughAChildOfARankHoldsThePipes) {
  Launcher launcher = ranks(2, "sleep 1000 & setsid sleep 1000 & echo done");
  EXPECT_EQ(launcher.finish(), 0);
  EXPECT_THAT(lines_of(launcher.stdout_text()),
              UnorderedElementsAre("[rank 0] done", "[rank 1] done"));
  EXPECT_TRUE(launcher.everyone_is_gone());
}

TEST(Launch, ForwardsSignalsToEveryRank) {
  for (int signal : {SIGUSR1, SIGUSR2}) {
    Launcher launcher = ranks(
        2, absl::StrCat("trap 'echo got it; exit 0' ", signal, "; echo ready; ", kWaitForEver));
    launcher.wait_for_lines("ready", 2);
    launcher.signal(signal);
    EXPECT_EQ(launcher.finish(), 0);
    EXPECT_THAT(lines_of(launcher.stdout_text()),
                UnorderedElementsAre("[rank 0] got it", "[rank 1] got it"));
  }
}

TEST(Launch, StopsRanksOnInterruptAndTermination) {
  for (int signal : {SIGINT, SIGTERM, SIGQUIT, SIGHUP}) {
    const int passed_on = signal == SIGHUP ? SIGTERM : signal;
    for (int count : {1, 2}) {
      Launcher launcher =
          ranks(count, absl::StrCat("trap 'exit 0' ", passed_on, "; echo ready; ", kWaitForEver));
      launcher.wait_for_lines("ready", count);
      launcher.signal(signal);
      EXPECT_EQ(launcher.finish(), 128 + signal);
      EXPECT_THAT(launcher.stderr_text(), HasSubstr(absl::StrCat("received signal ", signal)));
      EXPECT_TRUE(launcher.everyone_is_gone());
    }
  }
}

TEST(Launch, KillsRanksThatIgnoreTermination) {
  Launcher launcher = ranks(2, "trap '' TERM; echo ready; sleep 1000", {"--kill_grace", "0"});
  launcher.wait_for_lines("ready", 2);
  launcher.signal(SIGTERM);
  EXPECT_EQ(launcher.finish(), 143);
  EXPECT_THAT(launcher.stderr_text(), HasSubstr("ranks 0, 1 did not stop in time"));
  EXPECT_TRUE(launcher.everyone_is_gone());
}

std::string link_of(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::read_symlink(path, ignored).string();
}

// The process that would clean up behind the launcher reads a pipe of the launcher's.
pid_t guard_of(pid_t launcher) {
  std::set<std::string> files;
  std::error_code ignored;
  for (const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", launcher, "/fd"), ignored)) {
    files.insert(link_of(entry.path()));
  }
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::string name;
    std::getline(std::ifstream(entry.path() / "comm") >> std::ws, name);
    pid_t pid = 0;
    if (name == "accelerate-grd" && files.contains(link_of(entry.path() / "fd/0")) &&
        absl::SimpleAtoi(entry.path().filename().string(), &pid)) {
      return pid;
    }
  }
  return 0;
}

TEST(Launch, EndsWellWithoutItsGuard) {
  Launcher launcher = ranks(2, "echo ready; read x <&8");
  launcher.wait_for_lines("ready", 2);
  // It takes its name when it first runs, which may be after the ranks have.
  pid_t guard = 0;
  while (guard == 0) guard = guard_of(launcher.pid());
  kill(guard, SIGKILL);
  while (!link_of(absl::StrCat("/proc/", guard, "/fd/0")).empty()) {
  }
  launcher.go();
  launcher.go();
  EXPECT_EQ(launcher.finish(), 0);
}

TEST(Launch, LeavesARankThatDoesNotDie) {
  const char* rank = std::getenv("ACCELERATE_UNDYING_RANK");
  ASSERT_NE(rank, nullptr);
  Launcher launcher({"launch", "--num_processes=2", "--kill_grace=0", rank});
  launcher.wait_for_lines("ready", 2);
  launcher.signal(SIGTERM);
  EXPECT_EQ(launcher.finish(), 128 + SIGTERM);
  EXPECT_THAT(launcher.stderr_text(), HasSubstr(") does not die and was left behind\n"));
}

TEST(Launch, KillsAtOnceWhenInterruptedTwice) {
  Launcher launcher = ranks(2, absl::StrCat("trap 'echo asked' INT; echo ready; ", kWaitForEver),
                            {"--kill_grace=86400"});
  launcher.wait_for_lines("ready", 2);
  launcher.signal(SIGINT);
  launcher.wait_for_lines("asked", 2);
  launcher.signal(SIGINT);
  EXPECT_EQ(launcher.finish(), 130);
  EXPECT_THAT(lines_of(launcher.stderr_text()),
              ElementsAre(HasSubstr("received signal 2 (Interrupt) while stopping; killing"),
                          HasSubstr("ranks 0, 1 did not stop in time and were killed"),
                          HasSubstr("received signal 2 (Interrupt); stopped the ranks")));
  EXPECT_TRUE(launcher.everyone_is_gone());
}

// As under nohup, or in the background of a shell without job control. If two signals are
// pending, the one with the lower number, here SIGINT, would be read first.
TEST(Launch, LeavesIgnoredSignalsIgnored) {
  Launcher launcher({"launch", "--num_processes=2", "/bin/sh", "-c", "echo ready; sleep 1000"},
                    {SIGINT});
  launcher.wait_for_lines("ready", 2);
  launcher.signal(SIGINT);
  launcher.signal(SIGTERM);
  EXPECT_EQ(launcher.finish(), 143);
}

TEST(Launch, LeavesNothingBehindWhenItIsKilled) {
  for (int count : {1, 2}) {
    Launcher launcher = ranks(count, "sleep 1000 & setsid sleep 1000 & echo ready; sleep 1000");
    launcher.wait_for_lines("ready", count);
    launcher.signal(SIGKILL);
    EXPECT_EQ(launcher.wait(), 137);
    EXPECT_TRUE(launcher.everyone_is_gone());
  }
}

// The ranks of a launcher that is a rank itself are gone as well, with what left for sessions of
// its own.
TEST(Launch, LeavesNothingBehindOfARunInARun) {
  Launcher launcher = ranks(2,
                            "setsid \"$ACCELERATE_LAUNCHER\" launch --num_processes 2 /bin/sh -c "
                            "'setsid sleep 1000 & echo ready; sleep 1000'");
  launcher.wait_for_lines("ready", 4);
  launcher.signal(SIGKILL);
  EXPECT_EQ(launcher.wait(), 137);
  EXPECT_TRUE(launcher.everyone_is_gone());
}

TEST(Launch, StopsRanksWhenNobodyReadsItsOutput) {
  Launcher launcher = ranks(2, "echo ready; yes");
  launcher.wait_for_lines("ready", 1);
  launcher.close_stdout();
  EXPECT_EQ(launcher.finish(), 141);
  EXPECT_THAT(launcher.stderr_text(), HasSubstr("standard output was closed"));
  EXPECT_TRUE(launcher.everyone_is_gone());
}

// Its output is not read, so the launcher cannot write; it must answer all the same.
TEST(Launch, AnswersSignalsWhileItsReaderSleeps) {
  Launcher launcher = ranks(2, "echo ready; yes", {"--kill_grace=0"});
  launcher.wait_for_lines("ready", 1);
  launcher.signal(SIGTERM);
  launcher.signal(SIGINT);
  EXPECT_TRUE(launcher.everyone_is_gone());
  EXPECT_GE(launcher.wait(), 128);
}

TEST(Launch, GivesTheListeningSocketToRankZeroOnly) {
  Launcher launcher = ranks(2,
                            "ls -l /proc/$$/fd | grep -c socket: | sed \"s/^/sockets $RANK /\"\n"
                            "ls -l /proc/$$/fd/$ACCELERATE_STORE_LISTEN_FD | grep -c socket:\n"
                            "echo ready; sleep 1000");
  launcher.wait_for_lines("sockets 0 1", 1);
  launcher.wait_for_lines("ready", 1);
  // Output is passed on only after the launcher closed its own copy.
  for (const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", launcher.pid(), "/fd"))) {
    std::error_code gone;
    EXPECT_THAT(std::filesystem::read_symlink(entry.path(), gone).string(),
                Not(HasSubstr("socket:")));
  }
  launcher.signal(SIGTERM);
  launcher.finish();
}

TEST(Launch, KeepsTheListeningSocketFromOtherRanks) {
  Launcher launcher =
      ranks(2,
            "[ $RANK = 1 ] || exit 0\n"
            "ls -l /proc/$$/fd | grep socket:; echo \"fd<$ACCELERATE_STORE_LISTEN_FD>\"");
  EXPECT_EQ(launcher.finish(), 0);
  EXPECT_EQ(launcher.stdout_text(), "[rank 1] fd<>\n");
}

TEST(Launch, TakesAnotherPortIfTheOneAskedForIsTaken) {
  absl::StatusOr<process::ListeningSocket> taken = process::listen_on_loopback(0);
  ASSERT_TRUE(taken.ok()) << taken.status();
  Launcher launcher =
      ranks(2, "echo $MASTER_PORT", {absl::StrCat("--main_process_port=", taken->port)});
  EXPECT_EQ(launcher.finish(), 0);
  EXPECT_EQ(lines_of(launcher.stdout_text()).size(), 2u);
  EXPECT_THAT(launcher.stdout_text(), Not(HasSubstr(absl::StrCat(taken->port))));
  EXPECT_THAT(lines_of(launcher.stderr_text()),
              ElementsAre(HasSubstr(absl::StrCat("port ", taken->port, " is in use"))));
}

TEST(Launch, TellsWhyAProgramCannotBeStarted) {
  const TemporaryFolder folder;
  const std::string script = folder.path("no_such_interpreter");
  std::ofstream(script) << "#!/does/not/exist\n";
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  for (const auto& [program, code] : {std::pair<std::string, int>{script, 127},
                                      {"/does/not/exist", 127},
                                      {"/etc/passwd", 126},
                                      {"/etc", 126}}) {
    Launcher launcher({"launch", "--num_processes=2", program});
    EXPECT_EQ(launcher.finish(), code) << program;
    EXPECT_THAT(lines_of(launcher.stderr_text()), ElementsAre(HasSubstr(program)));
    EXPECT_TRUE(launcher.everyone_is_gone());
  }
}

TEST(Launch, RefusesABadCommandLineInOneLine) {
  Launcher launcher({"launch", "--num_processes", "0", "true"});
  EXPECT_EQ(launcher.finish(), 2);
  EXPECT_THAT(launcher.stdout_text(), IsEmpty());
  EXPECT_THAT(lines_of(launcher.stderr_text()), ElementsAre(HasSubstr("--num_processes=0")));
}

TEST(Program, ShowsItsHelpToThoseWhoSayNothing) {
  Launcher launcher({});
  EXPECT_EQ(launcher.finish(), 1);
  EXPECT_THAT(launcher.stdout_text(), HasSubstr("Usage: accelerate COMMAND"));
  EXPECT_THAT(launcher.stderr_text(), IsEmpty());
}

TEST(Program, ShowsTheCommonOptionsOfLaunchOrAll) {
  Launcher common({"launch", "--help"});
  EXPECT_EQ(common.finish(), 0);
  EXPECT_THAT(common.stdout_text(), HasSubstr("--num_processes"));
  EXPECT_THAT(common.stdout_text(), Not(HasSubstr("--monitor_interval")));
  Launcher all({"launch", "--help=all", "train"});
  EXPECT_EQ(all.finish(), 0);
  EXPECT_THAT(all.stdout_text(), HasSubstr("--monitor_interval"));
}

TEST(Program, RefusesWhatIsNotInThisVersionBeforeAnyRank) {
  Launcher launcher(
      {"launch", "--downcast_bf16", "--num_processes=2", "/bin/sh", "-c", "echo rank"});
  EXPECT_EQ(launcher.finish(), 2);
  EXPECT_THAT(launcher.stdout_text(), IsEmpty());
  EXPECT_THAT(lines_of(launcher.stderr_text()),
              ElementsAre(HasSubstr("--downcast_bf16 is not in this version")));
}

TEST(Launch, RunsTheProgramOnceWhenSimulating) {
  Launcher launcher(
      {"launch", "--simulate", "2x4", "--simulate_seed", "7", "/bin/sh", "-c",
       "cat; echo $ACCELERATE_SIMULATE $ACCELERATE_SIMULATE_SEED \"<$RANK>\"; exit 5"});
  launcher.send_input("read ");
  EXPECT_EQ(launcher.finish(), 5);
  EXPECT_EQ(launcher.stdout_text(), "read 2x4 7 <>\n");
  EXPECT_THAT(launcher.stderr_text(), IsEmpty());
}

TEST(Launch, LeavesNobodyBehindWhenSimulating) {
  for (const int signal : {SIGTERM, SIGHUP, SIGKILL}) {
    Launcher launcher(
        {"launch", "--simulate", "2x4", "/bin/sh", "-c", "echo ready; exec sleep 1000"});
    launcher.wait_for_lines("ready", 1);
    launcher.signal(signal);
    EXPECT_EQ(launcher.finish(), 128 + signal);
    EXPECT_TRUE(launcher.everyone_is_gone());
  }
}

TEST(Launch, StartsManyRanks) {
  Launcher launcher = ranks(256, "echo $RANK");
  EXPECT_EQ(launcher.finish(), 0);
  EXPECT_EQ(lines_of(launcher.stdout_text()).size(), 256u);
}

}  // namespace
}  // namespace accelerate::launcher::supervise
