#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/number_text.h"
#include "accelerate/base/status.h"
#include "accelerate/platform/environment.h"
#include "accelerate/platform/host_files.h"
#include "accelerate/platform/simulated_run.h"
#include "launch/commands/simulated_run.h"
#include "launch/process/child_process.h"
#include "launch/process/replace_file.h"
#include "simulator/hardware/cluster_spec.h"

namespace accelerate::launcher::commands {
namespace {

using nlohmann::json;
using simulator::ClusterSpec;

constexpr char kName[] = "simulate";
constexpr char kUnknown[] = "-";

enum class State { kFits, kOutOfMemory, kUnknown, kFailed };

// One run.
struct Row {
  std::string cluster;
  int ranks = 0;
  int devices = 0;
  State state = State::kFailed;
  int64_t steps = 0;  // that ended
  double step_seconds = 0;
  double samples_per_second = 0;
  double mfu = 0;
  double hfu = 0;
  double exposed = 0;       // the share of a step
  int64_t peak_memory = 0;  // the driver's, where it is modelled
  int64_t peak_tensors = 0;
  int64_t memory = 0;
  std::string explanation;  // empty: it fits
};

const char* to_string(State state) {
  constexpr const char* kTexts[] = {"yes", "no", "unknown", "failed"};
  return kTexts[static_cast<size_t>(state)];
}

std::string duration_text(double seconds) {
  if (seconds >= 1) return absl::StrFormat("%.3f s", seconds);
  if (seconds >= 1e-3) return absl::StrFormat("%.1f ms", seconds * 1e3);
  return absl::StrFormat("%.1f us", seconds * 1e6);
}

std::string rate_text(double per_second) {
  if (per_second <= 0) return kUnknown;
  return per_second < 1000 ? absl::StrFormat("%.3g", per_second)
                           : absl::StrFormat("%.0f", per_second);
}

std::string percent_text(double share) { return absl::StrFormat("%.1f %%", 100 * share); }

std::string memory_text(const Row& row) {
  if (row.memory == 0) return kUnknown;
  return absl::StrCat(binary_byte_text(row.peak_memory), " of ", binary_byte_text(row.memory));
}

class Sweeper {
 public:
  Sweeper(const ClusterSweep& sweep, Invocation& invocation)
      : sweep_(sweep), invocation_(invocation) {}

  int run() {
    const absl::Status done = sweep_.largest.empty() ? run_all() : search();
    if (!done.ok()) return fail(invocation_, kName, done, exit_code_);
    if (signals_.was_interrupted()) exit_code_ = signals_.exit_code();
    const int written = finish(invocation_);
    return written != 0 ? written : exit_code_;
  }

 private:
  // What the run is on, once the text is known to name one.
  struct Target {
    std::string text;
    ClusterSpec spec;
    plan::SimulationPlan plan;
  };

  absl::StatusOr<Target> target_of(std::string text) const {
    ACCELERATE_ASSIGN_OR_RETURN(ClusterSpec spec, ClusterSpec::parse(text));
    ACCELERATE_ASSIGN_OR_RETURN(plan::SimulationPlan plan, sweep_.plan(text));
    return Target{std::move(text), std::move(spec), std::move(plan)};
  }

  absl::Status bad_command_line(absl::Status status) {
    exit_code_ = kExitBadCommandLine;
    return status;
  }

  absl::Status run_all() {
    std::vector<Target> targets;
    for (absl::string_view text : absl::StrSplit(sweep_.clusters, ';')) {
      text = absl::StripAsciiWhitespace(text);
      if (text.empty()) continue;
      absl::StatusOr<Target> target = target_of(std::string(text));
      if (!target.ok()) return bad_command_line(target.status());
      width_ = std::max(width_, target->text.size());
      targets.push_back(*std::move(target));
    }
    if (targets.empty()) {
      return bad_command_line(absl::InvalidArgumentError(
          "--sweep names no cluster: expected some between semicolons, as in "
          "\"2x8:h100;4x8:h100\""));
    }
    ACCELERATE_RETURN_IF_ERROR(begin());
    for (const Target& target : targets) {
      ACCELERATE_RETURN_IF_ERROR(run_on(target).status());
      if (stopped()) break;
    }
    return absl::OkStatus();
  }

  absl::Status search() {
    const size_t colon = sweep_.largest.find(':');
    const std::string device = colon < sweep_.largest.size() ? sweep_.largest.substr(colon) : "";
    const absl::StatusOr<Target> largest = target_of(sweep_.largest);
    if (!largest.ok()) return bad_command_line(largest.status());
    const int nodes = largest->spec.num_nodes;
    const int ranks = largest->spec.ranks_per_node;
    if (!absl::StartsWith(sweep_.largest, absl::StrCat(nodes, "x", ranks, ":"))) {
      return bad_command_line(
          invalid("--fit=", sweep_.largest,
                  ": expected the largest cluster that there could be, as NODESxRANKS:DEVICE, "
                  "for example 128x8:h100"));
    }
    width_ = std::max(width_, sweep_.largest.size());
    ACCELERATE_RETURN_IF_ERROR(begin());
    // Ranks of one node, then whole nodes: each size twice the one before.
    std::vector<std::pair<int, int>> sizes;
    for (int r = 1; r < ranks; r *= 2) sizes.emplace_back(1, r);
    for (int n = 1; n < nodes; n *= 2) sizes.emplace_back(n, ranks);
    sizes.emplace_back(nodes, ranks);
    for (size_t i = 0; i < sizes.size(); ++i) {
      ACCELERATE_ASSIGN_OR_RETURN(const bool found, fits(sizes[i], device));
      if (stopped()) return absl::OkStatus();
      if (rows_.back().state == State::kUnknown) return tell_nothing();
      if (!found) continue;
      return i == 0 ? tell_smallest() : halve(sizes[i - 1], sizes[i], device);
    }
    exit_code_ = kExitLauncherFailed;
    const bool wants_memory = std::ranges::count(rows_, State::kOutOfMemory, &Row::state) > 0;
    invocation_.out << (wants_memory ? "it does not fit on "
                                     : "it fails, and not for want of memory, up to ")
                    << sweep_.largest << "\n";
    return absl::OkStatus();
  }

  absl::StatusOr<bool> fits(std::pair<int, int> size, const std::string& device) {
    const absl::StatusOr<Target> target =
        target_of(absl::StrCat(size.first, "x", size.second, device));
    if (!target.ok()) return bad_command_line(target.status());
    ACCELERATE_ASSIGN_OR_RETURN(const State state, run_on(*target));
    return state == State::kFits;
  }

  // Between a size that is too small and one that is not: nodes, or ranks of one node.
  absl::Status halve(std::pair<int, int> small, std::pair<int, int> enough,
                     const std::string& device) {
    const auto middle_of = [](int a, int b) { return a + (b - a) / 2; };
    while (small != enough) {
      const std::pair middle = {middle_of(small.first, enough.first),
                                middle_of(small.second, enough.second)};
      if (middle == small) break;
      ACCELERATE_ASSIGN_OR_RETURN(const bool found, fits(middle, device));
      if (stopped()) return absl::OkStatus();
      if (rows_.back().state == State::kUnknown) return tell_nothing();
      (found ? enough : small) = middle;
    }
    return tell_smallest();
  }

  absl::Status tell_nothing() {
    exit_code_ = kExitLauncherFailed;
    invocation_.out << "without measured memory it is unknown where it fits\n";
    return absl::OkStatus();
  }

  // The other failures of a search are those of sizes that the program does not take.
  absl::Status tell_smallest() {
    const Row* smallest = nullptr;
    for (const Row& row : rows_) {
      if (row.state != State::kFits) continue;
      if (smallest == nullptr || row.devices < smallest->devices) smallest = &row;
    }
    exit_code_ = 0;
    invocation_.out << "the smallest cluster on which it fits: " << smallest->cluster << " ("
                    << smallest->devices << (smallest->devices == 1 ? " device" : " devices")
                    << ")\n";
    return absl::OkStatus();
  }

  // The header, and a file that can be written.
  absl::Status begin() {
    exit_code_ = kExitLauncherFailed;
    if (!sweep_.report.empty()) {
      ACCELERATE_RETURN_IF_ERROR(prepare_report(sweep_.report));
    }
    ACCELERATE_RETURN_IF_ERROR(write_csv());
    exit_code_ = 0;
    write_line({"cluster", "ranks", "step", "samples/s", "tokens/s", "MFU", "exposed",
                "peak memory", "fits"});
    return absl::OkStatus();
  }

  absl::Status write_csv() const {
    if (sweep_.csv.empty()) return absl::OkStatus();
    return process::replace_file(sweep_.csv, csv_text(), 0644);
  }

  bool stopped() const { return signals_.was_interrupted() || !invocation_.out; }

  // Adds the row. Errors: the program cannot be started.
  absl::StatusOr<State> run_on(const Target& target) {
    const absl::StatusOr<std::string> program =
        find_program(invocation_, target.plan.process.argv[0]);
    if (!program.ok()) {
      exit_code_ = start_failure_code(program.status());
      return program.status();
    }
    const std::string summary = folder_.path("summary.json");
    process::EnvironmentOverlay changes = {{env::kSimulateSummary, summary}};
    report_below(target.plan, absl::StrCat(rows_.size() + 1, "_", file_name(target.text)), changes);
    clear_summary(summary);
    const absl::StatusOr<ChildResult> run =
        run_simulation(target.plan, *program, changes, invocation_.environment, signals_);
    if (!run.ok()) {
      exit_code_ = kExitLauncherFailed;
      return run.status();
    }
    if (signals_.was_interrupted()) return State::kFailed;
    Row row = {.cluster = target.text,
               .ranks = target.spec.world_size(),
               .devices = target.spec.world_size() * target.spec.devices_per_rank};
    take_summary(*run, summary, row);
    if (row.state == State::kFailed) exit_code_ = kExitLauncherFailed;
    write_row(row);
    rows_.push_back(std::move(row));
    if (absl::Status written = write_csv(); !written.ok()) {
      exit_code_ = kExitLauncherFailed;
      return written;
    }
    return rows_.back().state;
  }

  static std::string file_name(const std::string& cluster) {
    std::string name = cluster;
    std::ranges::replace_if(
        name, [](char c) { return !absl::ascii_isalnum(c) && c != '-' && c != '.'; }, '_');
    return name;
  }

  void take_summary(const ChildResult& run, const std::string& path, Row& row) const {
    const json summary = read_summary(path);
    if (summary.is_null()) {
      row.explanation = run.exit_code != 0 ? absl::StrCat(failure_text(run), "\n", tail_text(run))
                                           : absl::StrCat(kNoSimulation, "\n");
      return;
    }
    try {
      take_figures(summary, row);
      take_end(run, summary.at("failure"), row);
    } catch (const json::exception& error) {
      row.explanation = absl::StrCat(
          "the program is linked to another release of the simulator: ", error.what(), "\n");
    }
  }

  static void take_end(const ChildResult& run, const json& failure, Row& row) {
    if (failure.is_object() && failure.at("is_out_of_memory").get<bool>()) {
      row.state = State::kOutOfMemory;
      const std::string& message = failure.at("message").get_ref<const std::string&>();
      row.explanation = absl::StrCat(message.substr(0, message.find('\n')), "\n");
    } else if (run.exit_code != 0) {
      row.explanation = absl::StrCat(failure_text(run), "\n", tail_text(run));
    } else if (row.peak_memory == 0) {
      row.state = State::kUnknown;
      row.explanation = row.memory == 0
                            ? "nothing was measured: the cluster names no device\n"
                            : "nothing was measured: the program used no memory of a device, as "
                              "one does that computes on the CPU\n";
    } else {
      row.state = State::kFits;
      if (row.step_seconds <= 0) {
        row.explanation = "no step time: the program's optimizer made no step on a device\n";
      }
    }
  }

  static void take_figures(const json& summary, Row& row) {
    row.memory = summary.at("memory_capacity").get<int64_t>();
    for (const json& rank : summary.at("ranks")) {
      // The driver's figure has that of tensors in it.
      const int64_t of_driver = rank.at("driver_peak").get<int64_t>();
      const int64_t of_tensors = rank.at("memory_peak").get<int64_t>();
      row.peak_memory = std::max(row.peak_memory, of_driver > 0 ? of_driver : of_tensors);
      row.peak_tensors = std::max(row.peak_tensors, of_tensors);
    }
    const json& steps = summary.at("steps");
    if (!steps.is_object() || !summary.at("time_is_modelled").get<bool>()) return;
    row.steps = steps.at("count").get<int64_t>();
    row.step_seconds = steps.at("median_ns").get<double>() * 1e-9;
    const double mean_seconds = steps.at("mean_ns").get<double>() * 1e-9;
    if (mean_seconds <= 0) return;
    row.samples_per_second = steps.at("samples").get<double>() / mean_seconds;
    row.exposed = steps.at("exposed_ns").get<double>() * 1e-9 / mean_seconds;
    row.mfu = steps.at("mfu").get<double>();
    row.hfu = steps.at("hfu").get<double>();
  }

  void write_line(const std::vector<std::string>& cells) {
    const size_t widths[] = {width_, 5, 8, 9, 9, 6, 7, 24};
    std::string line = cells[0] + std::string(width_ - cells[0].size(), ' ');
    for (size_t i = 1; i + 1 < cells.size(); ++i) {
      absl::StrAppend(&line, "  ",
                      std::string(widths[i] - std::min(widths[i], cells[i].size()), ' '), cells[i]);
    }
    invocation_.out << line << "  " << cells.back() << std::endl;
  }

  void write_row(const Row& row) {
    const bool has_time = row.step_seconds > 0;
    write_line(
        {row.cluster, absl::StrCat(row.ranks),
         has_time ? duration_text(row.step_seconds) : kUnknown, rate_text(row.samples_per_second),
         rate_text(tokens_per_second(row)), has_time ? percent_text(row.mfu) : kUnknown,
         has_time ? percent_text(row.exposed) : kUnknown, memory_text(row), to_string(row.state)});
    if (!row.explanation.empty()) invocation_.out << "  " << row.explanation << std::flush;
  }

  double tokens_per_second(const Row& row) const {
    return row.samples_per_second * static_cast<double>(sweep_.tokens_per_sample);
  }

  std::string csv_text() const {
    std::string text =
        "cluster,ranks,devices,fits,steps,step_seconds,samples_per_second,tokens_per_second,mfu,"
        "hfu,exposed,peak_memory_bytes,peak_tensor_bytes,memory_bytes\n";
    for (const Row& row : rows_) {
      const auto number = [](double value) {
        return value > 0 ? float_text(value) : std::string();
      };
      absl::StrAppend(
          &text,
          absl::StrJoin(
              {absl::StrCat("\"", absl::StrReplaceAll(row.cluster, {{"\"", "\"\""}}), "\""),
               absl::StrCat(row.ranks), absl::StrCat(row.devices),
               std::string(to_string(row.state)), absl::StrCat(row.steps), number(row.step_seconds),
               number(row.samples_per_second), number(tokens_per_second(row)), number(row.mfu),
               number(row.hfu), row.step_seconds > 0 ? float_text(row.exposed) : "",
               absl::StrCat(row.peak_memory), absl::StrCat(row.peak_tensors),
               absl::StrCat(row.memory)},
              ","),
          "\n");
    }
    return text;
  }

  const ClusterSweep& sweep_;
  Invocation& invocation_;
  const RunSignals signals_;
  const TemporaryFolder folder_;
  size_t width_ = sizeof("cluster") - 1;
  int exit_code_ = 0;
  std::vector<Row> rows_;
};

}  // namespace

int run_sweep(const ClusterSweep& sweep, Invocation& invocation) {
  return Sweeper(sweep, invocation).run();
}

}  // namespace accelerate::launcher::commands
