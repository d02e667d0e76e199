// Two builds measured in turn, by scripts that stand for programs of Google Benchmark and for
// valgrind: the order of the runs, what they are told, what is made of their ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "accelerate/platform/host_files.h"
#include "launch/commands/commands.h"
#include "launch/testing/commands/command_tester.h"

namespace accelerate::launcher::commands {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class BenchCommand : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path(name); }

  std::string read(const std::string& name) const {
    std::stringstream text;
    text << std::ifstream(path(name)).rdbuf();
    return text.str();
  }

  std::string script(const std::string& name, const std::string& lines) const {
    const std::string file = path(name);
    std::ofstream(file) << "#!/bin/sh\n" << lines;
    EXPECT_EQ(chmod(file.c_str(), 0755), 0);
    return file;
  }

  // Notes its name and its words, and writes benchmarks as pairs of a name and nanoseconds.
  std::string program(const std::string& name, const std::string& benchmarks) const {
    return script(name, absl::StrCat("printf '", name, " ' >>", path("order"), "; echo \"$*\" >",
                                     path("words"), R"(
for word; do case $word in --benchmark_out=*) out=${word#*=} ;; esac; done
set -- )",
                                     benchmarks, R"(
{
  printf '{"benchmarks": ['
  while [ $# -gt 0 ]; do
    printf '{"name": "%s", "cpu_time": %s, "real_time": 7, "time_unit": "ns"}' "$1" "$2"
    shift 2
    [ $# -eq 0 ] || printf ', '
  done
  printf ']}'
} >"$out"
)"));
  }

  CommandResult bench(std::vector<std::string> words) const {
    words.insert(words.begin(), "bench");
    return run_command(kPerf, std::move(words),
                       {.typed = "", .environment = {absl::StrCat("PATH=", folder_.path())}});
  }

  const TemporaryFolder folder_;
};

TEST_F(BenchCommand, RunsBothInTurnAndTellsWhatIsSlower) {
  const std::string base = program("base", "BM_Add 100 BM_Old 5 BM_Wait 0");
  const std::string present = program("new", "BM_New 5 BM_Add 120 BM_Wait 9");
  const CommandResult result =
      bench({present, "--pair", base, "--rounds", "10", "--benchmark_filter", "BM_.*",
             "--repetitions", "3", "--min_time", "0.5", "--json", path("out/b.json"), "--markdown",
             path("b.md"), "--", "small", "--size=8"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::string order;
  for (int i = 0; i < 11; ++i) order += i % 2 == 0 ? "base new " : "new base ";
  EXPECT_EQ(read("order"), order) << "11 rounds: two benchmarks are too many for 10";
  EXPECT_THAT(read("words"), AllOf(HasSubstr("small --size=8 --benchmark_min_time=0.5 "
                                             "--benchmark_repetitions=3 --benchmark_filter=BM_.* "),
                                   HasSubstr("--benchmark_out_format=json")));
  EXPECT_THAT(result.out,
              AllOf(HasSubstr(absl::StrCat("note: BM_New is not in ", base, "\n")),
                    HasSubstr(absl::StrCat("note: BM_Old is not in ", present, "\n")),
                    HasSubstr(absl::StrCat("note: BM_Wait takes no CPU time in ", base)),
                    HasSubstr("BM_Add     CPU time  100 ns  120 ns  slower by 20.0 % (20.0 to"),
                    HasSubstr("\nwarning: 1 benchmark: 1 slower, 0 faster\n")));
  EXPECT_THAT(read("out/b.json"), HasSubstr("\"verdict\": \"more\""));
  EXPECT_THAT(read("b.md"), HasSubstr("| BM_Add | CPU time |"));
}

TEST_F(BenchCommand, SeesNoDifferenceInEqualTimes) {
  const std::string base = program("base", "BM_Add 100");
  CommandResult result = bench({base, "--pair", base, "--rounds", "10"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("\n1 benchmark: no difference seen\n"));
  // The wall time is always 7.
  const std::string present = program("new", "BM_Add 120");
  result = bench({present, "--pair", base, "--rounds", "10", "--time", "real"});
  EXPECT_THAT(result.out, AllOf(HasSubstr("wall time  7 ns"), HasSubstr("no difference seen (")));
  result = bench({present, "--pair", base, "--rounds", "10", "--threshold", "25"});
  EXPECT_THAT(result.out, HasSubstr("no difference seen (+20.0 to +20.0 %)"));
}

TEST_F(BenchCommand, NamesTheProgramThatFails) {
  const std::string base = program("base", "BM_Add 100");
  const std::string failing = script("failing", "echo cannot open data\nexit 3\n");
  CommandResult result = bench({failing, "--pair", base});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err,
              HasSubstr(absl::StrCat("accelerate perf bench: ", failing,
                                     " failed with exit code 3\n  | cannot open data")));
  const std::string silent = script("silent", "echo what are these words\n");
  result = bench({base, "--pair", silent});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr(absl::StrCat(silent,
                                                       " ended with exit code 0: no "
                                                       "results")),
                                HasSubstr("  | what are these words")));
  result = bench({base, "--pair", path("missing")});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr(path("missing")));
  result = bench({base, "--pair", program("other", "BM_Else 5")});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("have no benchmark in common"));
}

TEST_F(BenchCommand, RefusesWrongCommandLines) {
  EXPECT_EQ(bench({"new"}).exit_code, 2);
  EXPECT_EQ(bench({"--pair", "base"}).exit_code, 2);
  EXPECT_EQ(bench({"new", "--pair", "base", "--rounds", "3"}).exit_code, 2);
  EXPECT_EQ(bench({"new", "--pair", "base", "--time", "wall"}).exit_code, 2);
  EXPECT_EQ(bench({"new", "--pair", "base", "--instructions", "--time", "cpu"}).exit_code, 2);
  EXPECT_EQ(bench({"new", "--pair", "base", "--iterations", "3"}).exit_code, 2);
  for (const char* number : {"nan", "inf", "-1"}) {
    EXPECT_EQ(bench({"new", "--pair", "base", "--threshold", number}).exit_code, 2) << number;
    EXPECT_EQ(bench({"new", "--pair", "base", "--min_time", number}).exit_code, 2) << number;
  }
}

TEST_F(BenchCommand, EndsWhenInterrupted) {
  for (const auto& [signal, exit_code] : {std::pair("INT", 130), std::pair("TERM", 143)}) {
    const std::string base = script("base", absl::StrCat("echo base >", path("order"), "\nkill -",
                                                         signal, " $PPID\nexec /bin/sleep 60\n"));
    const CommandResult result = bench({base, "--pair", base});
    EXPECT_EQ(result.exit_code, exit_code);
    EXPECT_EQ(read("order"), "base\n");
    EXPECT_EQ(result.out, "");
  }
}

TEST_F(BenchCommand, CountsInstructionsOfAnIteration) {
  const std::string base = program("base", "BM_Add 1 BM_Fixed/iterations:3 1");
  const std::string present = program("new", "BM_Add 1");
  CommandResult result = bench({present, "--pair", base, "--instructions"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("needs valgrind, which is not in PATH; Debian's package is "
                                    "valgrind"));
  // 5000 instructions of the start, and some of each iteration. The program `noisy` has more of
  // them in its first two runs than in the next ones.
  const std::string noisy = program("noisy", "BM_Add 1");
  std::ofstream(path("runs")) << "0\n";
  script("valgrind", absl::StrCat("cd ", folder_.path(), R"sh(
echo "$*" >>calls
for word; do case $word in
  --callgrind-out-file=*) out=${word#*=} ;;
  --benchmark_min_time=*) n=${word#*=}; n=${n%x} ;;
  */base) each=1000 ;;
  */new) each=1100 ;;
  */noisy) read runs <runs; echo $((runs + 1)) >runs; each=$((runs < 2 ? 1050 : 990)) ;;
esac; done
echo "totals: $((5000 + n * each))" >"$out"
)sh"));
  result = bench({present, "--pair", base, "--instructions"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      result.out,
      AllOf(HasSubstr("counting BM_Add: 10000 iterations\n"),
            HasSubstr("BM_Add     instructions  1000  1100  more by 10.00 % (10.00 to 10.00)"),
            HasSubstr(absl::StrCat("BM_Fixed/iterations:3 is not in ", present))));
  EXPECT_THAT(read("calls"), AllOf(HasSubstr("--tool=callgrind --callgrind-out-file="),
                                   HasSubstr(absl::StrCat(present,
                                                          " --benchmark_filter=^BM_Add$ "
                                                          "--benchmark_min_time=10001x\n"))));
  result = bench({noisy, "--pair", base, "--instructions", "--iterations", "10"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("no difference seen (-1.00 to +5.00 %)"));
  result = bench({base, "--pair", base, "--instructions"});
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("BM_Fixed/iterations:3 sets its own number of iterations"),
                    HasSubstr("no difference seen (+0.00 to +0.00 %)")));
}

}  // namespace
}  // namespace accelerate::launcher::commands
