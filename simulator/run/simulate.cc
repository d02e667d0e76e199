// The run mode of `accelerate launch --simulate SPEC`: every rank of the program in this process.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/enum_text.h"
#include "accelerate/base/message_text.h"
#include "accelerate/base/number_text.h"
#include "accelerate/config/fsdp_plugin.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/platform/child.h"
#include "accelerate/platform/environment.h"
#include "accelerate/platform/simulated_run.h"
#include "accelerate/process/run.h"
#include "accelerate/runtime/env_parsing.h"
#include "accelerate/values/texts.h"
#include "simulator/cluster/cluster.h"
#include "simulator/core/run_log.h"
#include "simulator/faults/fault_run.h"
#include "simulator/faults/rules.h"
#include "simulator/report/report.h"
#include "simulator/report/report_text.h"

namespace accelerate::simulator {
namespace {

constexpr int kUsageError = 2;

// A cluster's text says what its ranks compute on.
constexpr char kUseCpu[] = "ACCELERATE_USE_CPU";

struct Detector {
  const char* name;
  bool ClusterOptions::* option;
};
constexpr Detector kDetectors[] = {{"races", &ClusterOptions::detect_races},
                                   {"leaks", &ClusterOptions::detect_leaks},
                                   {"drift", &ClusterOptions::detect_drift}};

// Reports settings that cannot be followed; simulate() says so on stderr.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  throw UsageError(absl::StrCat(parts...));
}

// The number in a variable, `usual` where it is unset.
uint64_t read_number(const Environment& environment, const char* variable, uint64_t usual) {
  uint64_t number = usual;
  const std::optional<std::string> text = environment.get(variable);
  if (text && !absl::SimpleAtoi(*text, &number)) {
    refuse(variable, "=\"", *text, "\" is not an unsigned number");
  }
  return number;
}

// Whether a variable, which is one of two words, is not the usual one.
bool is_other(const Environment& environment, const char* variable, const char* usual,
              const char* other) {
  const std::string word = environment.get_or(variable, usual);
  if (word != usual && word != other) {
    refuse(variable, "=\"", word, "\" is neither ", usual, " nor ", other);
  }
  return word == other;
}

// The member of an enumeration that a variable names, `usual` where it is unset.
template <EnumWithText E>
E read_member(const Environment& environment, const char* variable, E usual) {
  const std::string text = environment.get_or(variable, accelerate::to_string(usual));
  if (const std::optional<E> member = accelerate::value_of<E>(text)) return *member;
  refuse(variable, "=\"", text, "\" is none of ", absl::StrJoin(EnumTable<E>::kTexts, ", "));
}

// The rules in the variable, or in the file that it names; those that begin with a bracket are
// JSON.
FaultRules read_faults(const Environment& environment) {
  std::string text = environment.get_or(env::kSimulateFaults, "");
  if (absl::StartsWith(text, "@")) {
    const std::string path = text.substr(1);
    std::ifstream file(path);
    text = std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    if (!file) refuse(env::kSimulateFaults, ": cannot read ", path);
  }
  const bool is_json = absl::StartsWith(absl::StripLeadingAsciiWhitespace(text), "[");
  absl::StatusOr<FaultRules> parsed =
      is_json ? FaultRules::from_json(text) : FaultRules::parse(text);
  if (!parsed.ok()) refuse(parsed.status().message());
  return *std::move(parsed);
}

// The log that the variable names; null where it names none.
std::shared_ptr<const RunLog> read_log(const Environment& environment) {
  const std::string path = environment.get_or(env::kSimulateReplay, "");
  if (path.empty()) return nullptr;
  absl::StatusOr<RunLog> read = RunLog::read(path);
  if (!read.ok()) refuse(env::kSimulateReplay, ": ", read.status().message());
  return std::make_shared<const RunLog>(*std::move(read));
}

// Whether the settings divide models among the ranks of each node.
bool divides_by_node(const Environment& environment) {
  if (!parse_flag_from_env(kUseFsdp, false, environment)) return false;
  Environment copy = environment;
  try {
    return is_hybrid(resolve(FullyShardedDataParallelPlugin(), copy).strategy());
  } catch (const c10::Error&) {
    return false;  // the ranks say what is wrong
  }
}

// The mesh that the settings describe; absent: all ranks are replicas.
std::optional<Mesh> mesh_of(const Environment& environment, const ClusterSpec& spec) {
  if (!parse_flag_from_env("ACCELERATE_USE_PARALLELISM_CONFIG", false, environment)) {
    if (!divides_by_node(environment)) return std::nullopt;
    return Mesh({.dp_replicate = spec.num_nodes, .dp_shard = spec.ranks_per_node});
  }
  ParallelismConfig config({}, environment);
  if (config.sp_enabled()) config.fill_replicas(spec.world_size());
  const Mesh mesh(config);
  // As an Accelerator does it, a configuration without any axis makes replicas of all ranks.
  return mesh.num_ranks() > 1 ? std::optional(mesh) : std::nullopt;
}

// Turns off what `names` lists.
void turn_off_detectors(const std::string& names, ClusterOptions& options) {
  for (const absl::string_view name : absl::StrSplit(names, ',', absl::SkipEmpty())) {
    const auto* found = std::ranges::find(kDetectors, name, &Detector::name);
    if (found == std::end(kDetectors)) {
      refuse(env::kSimulateNoDetect, "=\"", names, "\": \"", name,
             "\" is not races, leaks or drift");
    }
    options.*found->option = false;
  }
}

// Says how much the run wrote that was in memory alone.
void say_memory(const OverlayFiles::Use& use) {
  if (use.files == 0) return;
  std::cerr << "accelerate: " << use.files << (use.files == 1 ? " file" : " files") << " of "
            << binary_byte_text(use.bytes) << " that the run wrote "
            << (use.files == 1 ? "was" : "were")
            << " in memory alone, because shapes without values are not results: no file of this "
               "machine was made, replaced or removed"
            << std::endl;
}

// Tells the launcher, if there is one, that this program simulates.
void say_that_it_began(const Environment& environment) {
  const std::string path = environment.get_or(env::kSimulateBegan, "");
  if (!path.empty()) std::ofstream(path) << '1';
}

// What the program wrote may be in a buffer still. As for real ranks, a full disk under the output
// does not fail the run.
void check_standard_output() {
  std::cout.flush();
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good()) return;
  std::cerr << "accelerate: cannot write to standard output; the rest of it is lost" << std::endl;
}

// A run of the program on the cluster.
class SimulatedRun {
 public:
  SimulatedRun(int argc, char** argv, const TrainFunction& train, const Environment& environment)
      : argc_(argc),
        argv_(argv),
        train_(train),
        environment_(environment),
        report_(environment.get_or(env::kSimulateReport, "")),
        summary_(environment.get_or(env::kSimulateSummary, "")),
        is_quiet_(environment.get_or(env::kSimulateQuiet, "") == "true") {
    environment_.unset(kUseCpu);
  }

  // Returns the exit code.
  int run(const std::string& spec, ClusterOptions options, bool twice) {
    options.environment = environment_;
    options.program = argc_ > 0 ? argv_[0] : "";
    options.repeat_command =
        repeat_line(environment_, std::vector<std::string>(argv_, argv_ + argc_));
    options.record = !summary_.empty();
    options.report_directory = report_;
    options.dump_folder =
        environment_.get_or(env::kDumpDir, report_.empty() ? "" : report_ + "/failure");
    if (!twice) return run_once(spec, std::move(options));
    options.log = std::make_shared<RunLog>();
    options.log_names_work = true;
    const int code = run_once(spec, options);
    return cluster_ ? compare(spec, std::move(options), code) : code;
  }

  // Says so on stderr where the report that is asked for has no times.
  void note_on_times(const std::string& spec, bool has_device) const {
    if (report_.empty() || has_device || is_quiet_) return;
    std::cerr << "accelerate: the report in " << report_ << " has no times: " << spec
              << " names no hardware, so time is not modelled; name a device, as in "
                 "--simulate 2x4:h100"
              << std::endl;
  }

  const Environment& environment() const { return environment_; }

 private:
  int run_once(const std::string& spec, ClusterOptions options) {
    const bool has_faults = !options.faults.empty();
    try {
      run_ranks(spec, std::move(options));
      say_faults();
      say_report();
    } catch (const ClusterError& error) {
      std::cerr << "accelerate: " << error.what() << std::endl;
      say_report();
      return 1;
    } catch (const std::exception& error) {
      // The cluster itself failed: a report that cannot be written, threads that cannot be started.
      std::cerr << "accelerate: " << exception_text(error) << std::endl;
      // Rules that cannot fire on the cluster.
      return has_faults && !cluster_ ? kUsageError : 1;
    }
    return exit_code();
  }

  // Runs the program once more, and tells whether it does the same. `code` is that of the first
  // run.
  int compare(const std::string& spec, ClusterOptions options, int code) {
    options.replay = std::exchange(options.log, nullptr);
    options.log_file.clear();
    options.record = false;
    options.report_directory.clear();
    options.dump_folder.clear();
    try {
      run_ranks(spec, std::move(options));
    } catch (const ClusterError&) {
      // The first run has told of its failure.
    } catch (const std::exception& error) {
      std::cerr << "accelerate: the second run: " << exception_text(error) << std::endl;
      return 1;
    }
    const std::string& difference = cluster_->log_difference();
    std::cerr << "accelerate: "
              << (difference.empty() ? "both runs did the same"
                                     : "the second run differs from the first: ")
              << difference << std::endl;
    return difference.empty() ? code : 1;
  }

  void run_ranks(const std::string& spec, ClusterOptions options) {
    cluster_.emplace(spec, std::move(options));
    codes_.assign(cluster_->world_size(), 0);
    cluster_->run_on_every_rank([&](Rank& rank) {
      // A copy for each rank, which may change it.
      std::vector<std::string> texts(argv_, argv_ + argc_);
      std::vector<char*> arguments = pointers_to(texts);
      codes_[rank.index()] = train_(argc_, arguments.data());
    });
  }

  // After a failure its message has them.
  void say_faults() const {
    for (const FaultOutcome& outcome : cluster_->fault_outcomes()) {
      std::cerr << "accelerate: fault: " << outcome.to_string() << std::endl;
    }
  }

  void say_report() const {
    if (const auto* files = cluster_->files_in_memory()) say_memory(files->use());
    if (!summary_.empty()) {
      const absl::Status written = write_summary(cluster_->trace(), summary_);
      if (!written.ok()) std::cerr << "accelerate: no summary: " << written.message() << std::endl;
    }
    if (report_.empty() || is_quiet_) return;
    for (const std::string& line : report_lines(cluster_->trace(), report_)) {
      std::cerr << "accelerate: " << line << std::endl;
    }
  }

  int exit_code() const {
    const auto failed = std::ranges::find_if(codes_, [](int code) { return code != 0; });
    if (failed == codes_.end()) return 0;
    std::vector<int> alike;
    for (size_t rank = 0; rank < codes_.size(); ++rank) {
      if (codes_[rank] == *failed) alike.push_back(static_cast<int>(rank));
    }
    std::cerr << "accelerate: " << rank_list(alike) << " returned " << *failed << std::endl;
    return *failed;
  }

  const int argc_;
  char** const argv_;
  const TrainFunction& train_;
  Environment environment_;  // of the ranks
  const std::string report_;
  const std::string summary_;
  const bool is_quiet_;
  std::optional<Cluster> cluster_;
  std::vector<int> codes_;
};

int run_as_set(int argc, char** argv, const TrainFunction& train, const Environment& environment) {
  const std::string spec = environment.get_or(env::kSimulate, "");
  uint64_t seed = read_number(environment, env::kSimulateSeed, 0);
  const uint64_t max_trace_slices =
      read_number(environment, env::kSimulateReportSlices, kMaxTraceSlices);
  const bool shapes = is_other(environment, env::kSimulateNumerics, "real", "shapes");
  const bool has_nan = is_other(environment, env::kSimulateUnknownValues, "error", "nan");
  const bool folds = is_other(environment, env::kSimulateFold, "false", "true");
  const bool twice = is_other(environment, env::kSimulateTwice, "false", "true");
  std::shared_ptr<const RunLog> replay = read_log(environment);
  // What the log says holds where nothing else is asked for; the command that repeats the run,
  // which names no log, says it as well.
  Environment settings = environment;
  for (const auto& [variable, name] :
       {std::pair(env::kSimulateSeed, "seed"), std::pair(env::kSimulateFaults, "faults"),
        std::pair(env::kSimulateTimeOuts, "time-outs"),
        std::pair(env::kSimulateSemantics, "semantics")}) {
    if (replay != nullptr && !settings.get(variable)) settings.set(variable, replay->header(name));
  }
  if (replay != nullptr && !environment.get(env::kSimulateSeed) &&
      !absl::SimpleAtoi(replay->header("seed"), &seed)) {
    refuse(env::kSimulateReplay, ": the log has no seed");
  }
  const absl::StatusOr<ClusterSpec> parsed = ClusterSpec::parse(spec);
  if (!parsed.ok()) refuse(parsed.status().message());
  if (shapes && !parsed->device) {
    refuse(env::kSimulateNumerics, "=shapes needs devices, and ", spec,
           " names none: name one, as in --simulate 2x4:h100");
  }
  if (folds && !shapes) {
    refuse(env::kSimulateFold,
           "=true needs runs without values, because a rank with values has its own: "
           "add --simulate_numerics shapes");
  }
  SimulatedRun run(argc, argv, train, settings);
  run.note_on_times(spec, parsed->device.has_value());
  UnknownValue unknown_value;
  if (has_nan) unknown_value = [](const std::string&) { return std::nan(""); };
  ClusterOptions options = {.seed = seed,
                            .numerics = shapes ? Numerics::kShapes : Numerics::kReal,
                            .max_trace_slices = max_trace_slices,
                            .unknown_value = std::move(unknown_value),
                            .host_files_take_time = true};
  // Rank 0 may initialise the model, save and log.
  if (folds) {
    options.fold = Folding{.rank_0_apart = true, .mesh = mesh_of(run.environment(), *parsed)};
  }
  options.faults = read_faults(settings);
  options.time_outs = read_member(settings, env::kSimulateTimeOuts, options.time_outs);
  options.semantics = read_member(settings, env::kSimulateSemantics, options.semantics);
  options.log_file = environment.get_or(env::kSimulateLog, "");
  options.replay = std::move(replay);
  if (!options.faults.empty()) {
    options.mesh = mesh_of(run.environment(), *parsed);
    if (options.mesh && options.mesh->num_ranks() != parsed->world_size()) options.mesh.reset();
  }
  turn_off_detectors(environment.get_or(env::kSimulateNoDetect, ""), options);
  const int code = run.run(spec, std::move(options), twice);
  check_standard_output();
  return code;
}

int simulate(int argc, char** argv, const TrainFunction& train, const Environment& environment) {
  say_that_it_began(environment);
  try {
    return run_as_set(argc, argv, train, environment);
  } catch (const UsageError& error) {
    std::cerr << "accelerate: " << error.what() << std::endl;
    return kUsageError;
  }
}

const bool registered = register_run_mode({.variable = env::kSimulate, .run = simulate});

}  // namespace
}  // namespace accelerate::simulator
