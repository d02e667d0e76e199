// `accelerate perf record|compare|accept`: what programs cost on simulated clusters, beside a
// baseline that is committed.
//
//     accelerate perf record [--config perf.yaml] [--workload NAME]... --out DIR
//     accelerate perf compare [--config perf.yaml] [--workload NAME]... [--results DIR]
//                             [--baselines DIR] [--json FILE] [--markdown FILE]
//     accelerate perf accept [--config perf.yaml] [--workload NAME]... [--results DIR]
//                            [--baselines DIR]
//     accelerate perf bench PROGRAM --pair BASE ...      (bench.cc)
// Without --results, compare and accept run the programs themselves.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "accelerate/base/message_text.h"
#include "accelerate/base/status.h"
#include "accelerate/platform/host_files.h"
#include "accelerate/platform/simulated_run.h"
#include "launch/commands/commands.h"
#include "launch/commands/simulated_run.h"
#include "launch/perf/comparison.h"
#include "launch/perf/measurement.h"
#include "launch/perf/workloads.h"

namespace accelerate::launcher::commands {
namespace {

using perf::Comparison;
using perf::Measurement;
using perf::Workload;
using perf::WorkloadCost;
using perf::Workloads;

constexpr char kName[] = "perf";
// Something changed, or a program failed.
constexpr int kChanged = 1;

// In the words of a program: an empty folder for each run, which is deleted behind it.
constexpr char kScratch[] = "{scratch}";

enum class Mode { kNone, kRecord, kCompare, kAccept };

struct Options {
  Mode mode = Mode::kNone;
  std::string config = "perf.yaml";
  std::vector<std::string> workloads;
  std::string out;             // of record
  std::string results;         // of the others; empty: run the programs
  std::string baselines;       // instead of the file's
  std::string accept_command;  // instead of this program's
  std::string json;
  std::string markdown;
};

std::string cost_path(const std::string& folder, const Workload& workload) {
  return absl::StrCat(folder, "/", workload.name, ".json");
}

struct Recording {
  WorkloadCost cost;
  // Clusters on which the program failed, which `cost` lacks.
  std::vector<std::pair<std::string, absl::Status>> failed;
};

// Those that were asked for.
absl::StatusOr<std::vector<Workload>> chosen(const Workloads& all, const Options& options) {
  if (options.workloads.empty()) return all.list;
  std::vector<std::string> names;
  for (const Workload& each : all.list) names.push_back(each.name);
  std::vector<Workload> some;
  for (const std::string& name : options.workloads) {
    const auto found = std::ranges::find(all.list, name, &Workload::name);
    if (found == all.list.end()) {
      return invalid("--workload=", name, ": ", all.path, " has ", absl::StrJoin(names, ", "),
                     did_you_mean(name, names));
    }
    some.push_back(*found);
  }
  return some;
}

class PerfRun {
 public:
  PerfRun(const Options& options, Invocation& invocation)
      : options_(options), invocation_(invocation) {}

  int run() {
    absl::StatusOr<Workloads> all = perf::load_workloads(options_.config);
    if (!all.ok()) return fail(invocation_, kName, all.status(), kExitBadCommandLine);
    if (!options_.baselines.empty()) all->baselines = options_.baselines;
    absl::StatusOr<std::vector<Workload>> list = chosen(*all, options_);
    if (!list.ok()) return fail(invocation_, kName, list.status(), kExitBadCommandLine);
    Comparison comparison;
    for (const Workload& workload : *list) {
      const absl::StatusOr<Recording> recording = recording_of(workload);
      if (signals_.was_interrupted()) return signals_.exit_code();
      if (!recording.ok() && options_.mode == Mode::kCompare) {
        comparison.missing.emplace_back(recording.status().message());
        has_failed_ = true;
        continue;
      }
      if (!recording.ok()) return fail(invocation_, kName, recording.status());
      if (absl::Status ok = take(*all, workload, *recording, comparison); !ok.ok()) {
        return fail(invocation_, kName, ok);
      }
    }
    return options_.mode == Mode::kCompare ? tell(*all, comparison) : finish(invocation_);
  }

 private:
  // On each of its clusters, until interrupted.
  Recording record(const Workload& workload) {
    const std::string command = shell_line(words_of(workload, ""));
    WorkloadCost cost = {.name = workload.name, .command = command, .versions = {}, .clusters = {}};
    Recording recording = {.cost = std::move(cost), .failed = {}};
    for (const std::string& cluster : workload.clusters) {
      if (signals_.was_interrupted()) break;
      invocation_.out << workload.name << " on " << cluster << std::endl;
      absl::StatusOr<Measurement> own = measure(workload, cluster, recording.cost.versions);
      if (!own.ok()) {
        const std::string message =
            absl::StrCat(workload.name, " on ", cluster, ": ", own.status().message());
        recording.failed.emplace_back(cluster, absl::Status(own.status().code(), message));
        continue;
      }
      if (!own->metrics.contains("time/step")) {
        invocation_.out << "  no training step was seen, so that times are of the whole run\n";
      }
      recording.cost.clusters[cluster] = *std::move(own);
    }
    return recording;
  }

  // As typed, but for the cluster if it is empty.
  static std::vector<std::string> words_of(const Workload& workload, const std::string& cluster) {
    std::vector<std::string> words = {"accelerate", "launch"};
    if (!cluster.empty()) words.insert(words.end(), {"--simulate", cluster});
    words.insert(words.end(), workload.options.begin(), workload.options.end());
    words.insert(words.end(), workload.program.begin(), workload.program.end());
    return words;
  }

  absl::StatusOr<Measurement> measure(const Workload& workload, const std::string& cluster,
                                      std::map<std::string, std::string>& versions) {
    const std::string path = folder_.path("summary.json");
    clear_summary(path);
    const TemporaryFolder scratch;
    plan::SimulationPlan plan;
    plan.process.argv = words_of(workload, cluster);
    // A workload is what perf.yaml says, whoever runs it.
    for (const std::string& variable : invocation_.environment) {
      const std::string name = variable.substr(0, variable.find('='));
      if (is_run_variable(name)) plan.process.environment[name] = std::nullopt;
    }
    plan.process.environment[kNoDefaultConfig] = "1";
    for (std::string& word : plan.process.argv) {
      absl::StrReplaceAll({{kScratch, scratch.path()}}, &word);
    }
    const std::string& launcher =
        invocation_.executable.empty() ? plan.process.argv[0] : invocation_.executable;
    ACCELERATE_ASSIGN_OR_RETURN(const ChildResult ended,
                                run_simulation(plan, launcher, {{env::kSimulateSummary, path}},
                                               invocation_.environment, signals_));
    if (signals_.was_interrupted()) return absl::CancelledError("interrupted");
    if (ended.exit_code != 0 || ended.signal != 0) {
      return absl::AbortedError(
          absl::StrCat("the program ", failure_text(ended), "\n", tail_text(ended)));
    }
    const nlohmann::json summary = read_summary(path);
    if (summary.is_null()) return absl::FailedPreconditionError(kNoSimulation);
    if (summary.contains("versions")) {
      versions = summary.at("versions").get<std::map<std::string, std::string>>();
    }
    return perf::measurement_of(summary, cluster);
  }

  absl::StatusOr<Recording> recording_of(const Workload& workload) {
    if (options_.results.empty()) return record(workload);
    ACCELERATE_ASSIGN_OR_RETURN(WorkloadCost cost,
                                perf::load_cost(cost_path(options_.results, workload)));
    return Recording{.cost = std::move(cost), .failed = {}};
  }

  absl::Status take(const Workloads& all, const Workload& workload, const Recording& recording,
                    Comparison& comparison) {
    if (options_.mode != Mode::kCompare) {
      if (!recording.failed.empty()) return recording.failed[0].second;
      const std::string path =
          cost_path(options_.mode == Mode::kRecord ? options_.out : all.baselines, workload);
      ACCELERATE_RETURN_IF_ERROR(write_result(path, perf::to_text(recording.cost)));
      invocation_.out << path << "\n";
      return absl::OkStatus();
    }
    // Others may be as they were.
    for (const auto& [cluster, status] : recording.failed) {
      comparison.missing.emplace_back(status.message());
      has_failed_ = true;
    }
    absl::StatusOr<WorkloadCost> baseline = perf::load_cost(cost_path(all.baselines, workload));
    if (absl::IsNotFound(baseline.status())) {
      comparison.missing.push_back(absl::StrCat(workload.name, " has no baseline"));
      return absl::OkStatus();
    }
    if (!baseline.ok()) {
      comparison.missing.emplace_back(baseline.status().message());
      return absl::OkStatus();
    }
    for (const auto& failed : recording.failed) baseline->clusters.erase(failed.first);
    perf::compare(*baseline, recording.cost, workload.tolerances, comparison);
    return absl::OkStatus();
  }

  int tell(const Workloads& all, const Comparison& comparison) {
    invocation_.out << perf::to_table(comparison);
    if (!comparison.is_equal() && !has_failed_)
      invocation_.out << "to take these as the baseline: " << accept_line(all) << "\n";
    for (const auto& [path, text] : {std::pair(options_.json, perf::to_json_text(comparison)),
                                     std::pair(options_.markdown, perf::to_markdown(comparison))}) {
      if (path.empty()) continue;
      if (absl::Status ok = write_result(path, text); !ok.ok()) return fail(invocation_, kName, ok);
    }
    const int written = finish(invocation_);
    return written != 0 || comparison.is_equal() ? written : kChanged;
  }

  std::string accept_line(const Workloads& all) const {
    if (!options_.accept_command.empty()) return options_.accept_command;
    std::vector<std::string> words = {"accelerate", kName, "accept", "--config", all.path};
    for (const std::string& each : options_.workloads)
      words.insert(words.end(), {"--workload", each});
    if (!options_.baselines.empty()) words.insert(words.end(), {"--baselines", options_.baselines});
    if (!options_.results.empty()) words.insert(words.end(), {"--results", options_.results});
    return shell_line(words);
  }

  const Options& options_;
  Invocation& invocation_;
  const RunSignals signals_;
  const TemporaryFolder folder_;
  // A program failed, or a result is missing: there is nothing to take as the baseline.
  bool has_failed_ = false;
};

int run(const Options& options, Invocation& invocation) {
  if (options.mode == Mode::kNone) {
    return refuse(invocation, kName, "expected record, compare, accept or bench");
  }
  return PerfRun(options, invocation).run();
}

void add_common(CLI::App& app, Options& options) {
  add_value(app, "--config", options.config, "FILE", "the file that names the programs")
      ->capture_default_str();
  add_value(app, "--workload", options.workloads, "NAME",
            "only the one of this name; may be repeated");
}

RunCommand declare(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.footer(
      "perf.yaml names programs and simulated clusters. Their times, traffic, memory and\n"
      "operators are the same on every machine: a change of them is one of the program.\n"
      "Exit code of compare: 0 if nothing changed, 1 if something did or a program failed,\n"
      "2 for a perf.yaml or command line that is wrong.");
  CLI::App& record = *app.add_subcommand("record", "Run the programs and write what they cost.");
  add_common(record, *options);
  add_value(record, "--out", options->out, "DIR", "the folder for a file of each program")
      ->required();
  record.callback([options] { options->mode = Mode::kRecord; });
  CLI::App& compare =
      *app.add_subcommand("compare", "Compare what programs cost with the baseline.");
  add_common(compare, *options);
  add_value(compare, "--json", options->json, "FILE", "a file for the changes as JSON");
  add_value(compare, "--markdown", options->markdown, "FILE",
            "a file for the changes as a table in Markdown");
  add_value(compare, "--accept_command", options->accept_command, "TEXT",
            "what the last line tells to do to take a change as the baseline");
  compare.callback([options] { options->mode = Mode::kCompare; });
  CLI::App& accept = *app.add_subcommand("accept", "Take what programs cost as the new baseline.");
  add_common(accept, *options);
  accept.callback([options] { options->mode = Mode::kAccept; });
  for (CLI::App* each : {&compare, &accept}) {
    add_value(*each, "--results", options->results, "DIR",
              "a folder that record has written; without it the programs are run");
    add_value(*each, "--baselines", options->baselines, "DIR",
              "the baselines' folder, instead of FILE's");
  }
  CLI::App& bench = *app.add_subcommand(kPerfBench.name, kPerfBench.summary);
  return [options, &bench, run_bench = kPerfBench.declare(bench)](Invocation& invocation) {
    return bench.parsed() ? run_bench(invocation) : run(*options, invocation);
  };
}

}  // namespace

const Command kPerf = {kName, "Compare what programs cost with a baseline.", declare};

}  // namespace accelerate::launcher::commands
