// `accelerate perf bench PROGRAM [ARGS...] --pair BASE`: two builds of a Google Benchmark program.
//
// Both run in turn, in a process each: BASE PROGRAM, PROGRAM BASE, BASE PROGRAM, ... Each process
// repeats each benchmark a few times and counts the least disturbed repetition. With --instructions
// callgrind counts instead: the difference of two runs that differ in their iterations alone, so
// that the program's start does not count.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "accelerate/base/number_text.h"
#include "accelerate/base/status.h"
#include "accelerate/platform/host_files.h"
#include "launch/commands/commands.h"
#include "launch/commands/simulated_run.h"
#include "launch/perf/bench_report.h"
#include "launch/perf/pairing.h"

namespace accelerate::launcher::commands {
namespace {

using perf::BenchmarkTimes;
using perf::BenchReport;
using perf::Difference;
using perf::Measure;
using perf::Verdict;

constexpr char kName[] = "perf bench";
constexpr int kMostRounds = 200;
constexpr double kTimeThreshold = 1;           // per cent
constexpr double kInstructionThreshold = 0.1;  // per cent
// Instructions of all iterations that are counted. Runs of one build differ by a few hundred, which
// format the times that are printed.
constexpr double kCounted = 1e7;
// An iteration has at least about as many.
constexpr double kLeastInstructions = 10;

struct Options {
  std::string program;
  std::vector<std::string> arguments;
  std::string base;
  std::string filter;
  int rounds = 20;
  int repetitions = 10;
  double min_time = 0.02;  // seconds
  std::string time;        // "cpu", "real"; empty: as each benchmark wants
  std::optional<double> threshold;
  bool instructions = false;
  int64_t iterations = 0;  // 0: as many as kCounted needs
  std::string json;
  std::string markdown;
};

struct Build {
  std::string typed;
  std::string file;
  std::vector<std::vector<BenchmarkTimes>> runs;

  /// Null if there is none of that name.
  const BenchmarkTimes* find(size_t run, const std::string& name) const {
    const auto found = std::ranges::find(runs[run], name, &BenchmarkTimes::name);
    return found != runs[run].end() ? &*found : nullptr;
  }
};

class Bench {
 public:
  Bench(const Options& options, Invocation& invocation)
      : options_(options),
        invocation_(invocation),
        base_{.typed = options.base},
        present_{.typed = options.program} {}

  int run() {
    const absl::StatusOr<BenchReport> report = measure();
    if (signals_.was_interrupted()) return signals_.exit_code();
    if (!report.ok()) return fail(invocation_, kName, report.status());
    invocation_.out << perf::to_table(*report);
    for (const auto& [path, text] : {std::pair(options_.json, perf::to_json_text(*report)),
                                     std::pair(options_.markdown, perf::to_markdown(*report))}) {
      if (path.empty()) continue;
      if (absl::Status ok = write_result(path, text); !ok.ok()) return fail(invocation_, kName, ok);
    }
    return finish(invocation_);
  }

 private:
  absl::StatusOr<BenchReport> measure() {
    for (Build* build : {&base_, &present_}) {
      ACCELERATE_ASSIGN_OR_RETURN(build->file, find_program(invocation_, build->typed));
    }
    const double usual = options_.instructions ? kInstructionThreshold : kTimeThreshold;
    BenchReport report = {.base = options_.base,
                          .present = options_.program,
                          .threshold = options_.threshold.value_or(usual) / 100};
    ACCELERATE_RETURN_IF_ERROR(options_.instructions ? count(report) : time(report));
    return report;
  }

  // ---- Times.

  absl::Status time(BenchReport& report) {
    const std::vector<std::string> flags = {
        absl::StrCat("--benchmark_min_time=", float_text(options_.min_time)),
        absl::StrCat("--benchmark_repetitions=", options_.repetitions)};
    report.rounds = options_.rounds;
    std::vector<std::string> names;
    for (int round = 0; round < report.rounds; ++round) {
      const absl::Time start = absl::Now();
      std::array<Build*, 2> order = {&base_, &present_};
      if (round % 2 == 1) std::swap(order[0], order[1]);
      for (Build* build : order) {
        ACCELERATE_RETURN_IF_ERROR(run_benchmarks(*build, flags));
      }
      if (round > 0) continue;
      ACCELERATE_ASSIGN_OR_RETURN(names, in_both(report));
      report.rounds = std::max(report.rounds, perf::least_pairs(static_cast<int>(names.size())));
      invocation_.out << absl::StrFormat("%s and %s in turn, %d rounds of %.1f s\n", base_.typed,
                                         present_.typed, report.rounds,
                                         absl::ToDoubleSeconds(absl::Now() - start))
                      << std::flush;
    }
    for (const std::string& name : names) {
      ACCELERATE_RETURN_IF_ERROR(add_times(name, static_cast<int>(names.size()), report));
    }
    return absl::OkStatus();
  }

  absl::Status add_times(const std::string& name, int benchmarks, BenchReport& report) const {
    const bool is_wall =
        options_.time.empty() ? base_.find(0, name)->measures_wall_time : options_.time == "real";
    std::vector<double> times[2];
    for (const auto& [build, list] :
         {std::pair(&base_, &times[0]), std::pair(&present_, &times[1])}) {
      for (size_t run = 0; run < build->runs.size(); ++run) {
        const BenchmarkTimes* found = build->find(run, name);
        if (found == nullptr) {
          return absl::AbortedError(absl::StrCat(build->typed, " did not run ", name, " in round ",
                                                 run + 1, ", as it did before"));
        }
        list->push_back(is_wall ? found->wall_ns : found->cpu_ns);
      }
      if (std::ranges::min(*list) > 0) continue;
      report.notes.push_back(absl::StrCat(name, " takes no ", is_wall ? "" : "CPU ", "time in ",
                                          build->typed, is_wall ? "" : "; see --time real"));
      return absl::OkStatus();
    }
    report.rows.push_back(
        {.name = name,
         .measure = is_wall ? Measure::kWallTime : Measure::kCpuTime,
         .difference = perf::paired_difference(times[0], times[1], report.threshold, benchmarks)});
    return absl::OkStatus();
  }

  // ---- Instructions.

  absl::Status count(BenchReport& report) {
    const absl::StatusOr<std::string> valgrind = find_program(invocation_, "valgrind");
    if (!valgrind.ok()) {
      return absl::NotFoundError(
          "--instructions needs valgrind, which is not in PATH; Debian's package is valgrind");
    }
    valgrind_ = *valgrind;
    for (Build* build : {&base_, &present_}) {
      // Once, for the names.
      ACCELERATE_RETURN_IF_ERROR(run_benchmarks(*build, {"--benchmark_min_time=1x"}));
    }
    ACCELERATE_ASSIGN_OR_RETURN(const std::vector<std::string> names, in_both(report));
    for (const std::string& name : names) {
      if (perf::fixes_iterations(name)) {
        report.notes.push_back(absl::StrCat(name, " sets its own number of iterations or time"));
        continue;
      }
      ACCELERATE_RETURN_IF_ERROR(add_instructions(name, report));
    }
    return absl::OkStatus();
  }

  absl::Status add_instructions(const std::string& name, BenchReport& report) {
    int64_t iterations = options_.iterations;
    std::optional<double> start;  // of the base, with one iteration
    if (iterations == 0) {
      ACCELERATE_ASSIGN_OR_RETURN(const double one, instructions(base_, name, 1));
      ACCELERATE_ASSIGN_OR_RETURN(const double two, instructions(base_, name, 2));
      start = one;
      iterations =
          static_cast<int64_t>(std::ceil(kCounted / std::max(two - one, kLeastInstructions)));
    }
    invocation_.out << "counting " << name << ": " << iterations
                    << (iterations == 1 ? " iteration" : " iterations") << std::endl;
    std::vector<double> counts[2];
    Difference difference;
    // What differs is counted once more, lest the program counts otherwise each time.
    for (int run = 0; run < 2; ++run) {
      for (const auto& [build, list] :
           {std::pair(&base_, &counts[0]), std::pair(&present_, &counts[1])}) {
        ACCELERATE_ASSIGN_OR_RETURN(
            const double least, start ? absl::StatusOr<double>(*std::exchange(start, std::nullopt))
                                      : instructions(*build, name, 1));
        ACCELERATE_ASSIGN_OR_RETURN(const double most, instructions(*build, name, 1 + iterations));
        if (most <= least) {
          report.notes.push_back(absl::StrCat(name, " has no more instructions in ", build->typed,
                                              " with more iterations"));
          return absl::OkStatus();
        }
        list->push_back((most - least) / static_cast<double>(iterations));
      }
      difference = perf::count_difference(counts[0], counts[1], report.threshold);
      if (difference.verdict == Verdict::kNoDifference) break;
    }
    report.rows.push_back(
        {.name = name, .measure = Measure::kInstructions, .difference = difference});
    return absl::OkStatus();
  }

  // Those of the whole process.
  absl::StatusOr<double> instructions(const Build& build, const std::string& name,
                                      int64_t iterations) {
    const std::string path = folder_.path("callgrind.out");
    std::vector<std::string> argv = {"valgrind", "--tool=callgrind",
                                     absl::StrCat("--callgrind-out-file=", path)};
    for (std::string& word :
         command_of(build, {absl::StrCat("--benchmark_filter=", perf::filter_of(name)),
                            absl::StrCat("--benchmark_min_time=", iterations, "x")})) {
      argv.push_back(std::move(word));
    }
    ACCELERATE_ASSIGN_OR_RETURN(const ChildResult ended, execute(build, valgrind_, argv));
    HostFiles files;
    const absl::StatusOr<std::string> text = read_file(files, path);
    const absl::StatusOr<double> total =
        text.ok() ? perf::parse_instructions(*text) : absl::StatusOr<double>(text.status());
    if (!total.ok()) return about(build, ended, total.status());
    return total;
  }

  // ---- Both.

  std::vector<std::string> command_of(const Build& build,
                                      const std::vector<std::string>& flags) const {
    std::vector<std::string> argv = {build.file};
    argv.insert(argv.end(), options_.arguments.begin(), options_.arguments.end());
    argv.insert(argv.end(), flags.begin(), flags.end());
    return argv;
  }

  // Adds a run to those of the build.
  absl::Status run_benchmarks(Build& build, std::vector<std::string> flags) {
    const std::string path = folder_.path("benchmark.json");
    if (!options_.filter.empty()) {
      flags.push_back(absl::StrCat("--benchmark_filter=", options_.filter));
    }
    flags.push_back(absl::StrCat("--benchmark_out=", path));
    flags.push_back("--benchmark_out_format=json");
    HostFiles files;
    clear_summary(path);
    ACCELERATE_ASSIGN_OR_RETURN(const ChildResult ended,
                                execute(build, build.file, command_of(build, flags)));
    ACCELERATE_ASSIGN_OR_RETURN(const std::string text, read_file(files, path));
    if (text.empty()) {
      return about(
          build, ended,
          absl::InvalidArgumentError("no results in --benchmark_out; no benchmark "
                                     "matches, or the program does not use Google Benchmark"));
    }
    absl::StatusOr<std::vector<BenchmarkTimes>> times = perf::parse_benchmark_output(text);
    if (!times.ok()) return about(build, ended, times.status());
    build.runs.push_back(*std::move(times));
    return absl::OkStatus();
  }

  // Errors: it could not be started, or failed.
  absl::StatusOr<ChildResult> execute(const Build& build, const std::string& file,
                                      const std::vector<std::string>& argv) {
    const absl::StatusOr<ChildResult> ended =
        run_collected(file, argv, invocation_.environment, signals_);
    if (!ended.ok()) return ended;
    if (signals_.was_interrupted()) return absl::CancelledError("interrupted");
    if (ended->exit_code == 0) return ended;
    return absl::AbortedError(
        absl::StrCat(build.typed, " ", failure_text(*ended), "\n", tail_text(*ended)));
  }

  // What is wrong with what a program wrote that ended well.
  static absl::Status about(const Build& build, const ChildResult& ended,
                            const absl::Status& status) {
    return absl::Status(status.code(),
                        absl::StrCat(build.typed, " ended with exit code ", ended.exit_code, ": ",
                                     status.message(), "\n", tail_text(ended)));
  }

  // The benchmarks of the first runs, in the order of the present build; notes tell of the others.
  absl::StatusOr<std::vector<std::string>> in_both(BenchReport& report) const {
    std::vector<std::string> names;
    for (const BenchmarkTimes& each : present_.runs[0]) {
      if (base_.find(0, each.name) != nullptr) {
        names.push_back(each.name);
      } else {
        report.notes.push_back(absl::StrCat(each.name, " is not in ", base_.typed));
      }
    }
    for (const BenchmarkTimes& each : base_.runs[0]) {
      if (present_.find(0, each.name) == nullptr) {
        report.notes.push_back(absl::StrCat(each.name, " is not in ", present_.typed));
      }
    }
    if (names.empty()) {
      return absl::NotFoundError(
          absl::StrCat(base_.typed, " and ", present_.typed, " have no benchmark in common"));
    }
    return names;
  }

  const Options& options_;
  Invocation& invocation_;
  const RunSignals signals_;
  const TemporaryFolder folder_;
  std::string valgrind_;
  Build base_;
  Build present_;
};

RunCommand declare(CLI::App& app) {
  // CLI11's own checks let NaN pass.
  const std::function<std::string(const std::string&)> is_finite = [](const std::string& text) {
    double value = 0;
    const bool is_number = absl::SimpleAtod(text, &value) && std::isfinite(value);
    return is_number ? "" : absl::StrCat("expected a finite number, got ", text);
  };
  auto options = std::make_shared<Options>();
  app.footer(
      "Both builds run in turn. A benchmark is slower or faster if that is neither chance nor\n"
      "less than the threshold; equal builds look different in one run of 500. Exit code: 0 also\n"
      "if one is slower, 1 if a program failed, 2 for a wrong command line.");
  add_value(app, "PROGRAM", options->program, "", "the new build")->required();
  add_value(app, "ARGS", options->arguments, "", "arguments of both, after --");
  add_value(app, "--pair", options->base, "BASE", "the build to compare with")->required();
  add_value(app, "--benchmark_filter", options->filter, "REGEX",
            "benchmarks to run, as a regular expression");
  add_value(app, "--threshold", options->threshold, "PERCENT",
            "smaller differences do not count (1, with --instructions 0.1)")
      ->check(CLI::NonNegativeNumber)
      ->check(is_finite);
  CLI::Option* instructions =
      app.add_flag("--instructions", options->instructions,
                   "count instructions of an iteration with valgrind instead of measuring times");
  add_value(app, "--iterations", options->iterations, "N",
            "iterations to count (as many as take ten million instructions)")
      ->check(CLI::PositiveNumber)
      ->needs(instructions);
  add_value(app, "--rounds", options->rounds, "N",
            absl::StrCat("pairs of processes (", options->rounds,
                         "); raised where benchmarks are too many for them"))
      ->check(CLI::Range(perf::least_pairs(1), kMostRounds))
      ->excludes(instructions);
  add_value(app, "--repetitions", options->repetitions, "N",
            absl::StrCat("repetitions of a benchmark in a process, of which the least counts (",
                         options->repetitions, ")"))
      ->check(CLI::PositiveNumber)
      ->excludes(instructions);
  add_value(app, "--min_time", options->min_time, "SECONDS",
            absl::StrCat("the least time of a repetition (", options->min_time, ")"))
      ->check(CLI::PositiveNumber)
      ->check(is_finite)
      ->excludes(instructions);
  add_value(app, "--time", options->time, "",
            "CPU time or wall time; by default wall time where a benchmark asks for it "
            "(UseRealTime, UseManualTime)")
      ->check(CLI::IsMember({"cpu", "real"}))
      ->excludes(instructions);
  add_value(app, "--json", options->json, "FILE", "a file for the results as JSON");
  add_value(app, "--markdown", options->markdown, "FILE",
            "a file for the results as a table in Markdown");
  return [options](Invocation& invocation) { return Bench(*options, invocation).run(); };
}

}  // namespace

const Command kPerfBench = {"bench", "Compare two builds of a Google Benchmark program.", declare};

}  // namespace accelerate::launcher::commands
