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

constexpr char kReal[] = "real";
constexpr char kShapes[] = "shapes";
constexpr char kError[] = "error";
constexpr char kNan[] = "nan";
constexpr char kFalse[] = "false";
constexpr char kTrue[] = "true";

// A cluster's text says what its ranks compute on.
constexpr char kUseCpu[] = "ACCELERATE_USE_CPU";

struct Detector {
  const char* name;
  bool ClusterOptions::* option;
};
constexpr Detector kDetectors[] = {{"races", &ClusterOptions::detect_races},
                                   {"leaks", &ClusterOptions::detect_leaks},
                                   {"drift", &ClusterOptions::detect_drift}};

// Says on stderr what cannot be followed. Returns false.
template <typename... Parts>
bool refuse(const Parts&... parts) {
  std::cerr << "accelerate: " << absl::StrCat(parts...) << std::endl;
  return false;
}

// The number in a variable, or `number` as it is where the variable is unset. Says so on stderr and
// returns false if the text is something else.
template <typename Number>
bool read_number(const Environment& environment, const char* variable, Number& number) {
  const std::optional<std::string> text = environment.get(variable);
  if (!text || absl::SimpleAtoi(*text, &number)) return true;
  return refuse(variable, "=\"", *text, "\" is not an unsigned number");
}

// The word in a variable, `usual` where it is unset. Says so on stderr and returns false if it is
// neither of the two.
bool read_word(const Environment& environment, const char* variable, const char* usual,
               const char* other, std::string& word) {
  word = environment.get_or(variable, usual);
  if (word == usual || word == other) return true;
  return refuse(variable, "=\"", word, "\" is neither ", usual, " nor ", other);
}

// The member of an enumeration that a variable names; `member` as it is where the variable is
// unset. Says so on stderr and returns false if the text is something else.
template <EnumWithText E>
bool read_member(const Environment& environment, const char* variable, E& member) {
  const std::string text = environment.get_or(variable, accelerate::to_string(member));
  const std::optional<E> known = accelerate::value_of<E>(text);
  if (known) member = *known;
  return known || refuse(variable, "=\"", text, "\" is none of ",
                         absl::StrJoin(EnumTable<E>::kTexts, ", "));
}

// The rules in the variable, or in the file that it names; those that begin with a bracket are
// JSON. Says so on stderr and returns false if they are something else.
bool read_faults(const Environment& environment, FaultRules& faults) {
  std::string text = environment.get_or(env::kSimulateFaults, "");
  if (absl::StartsWith(text, "@")) {
    const std::string path = text.substr(1);
    std::ifstream file(path);
    text = std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    if (!file) return refuse(env::kSimulateFaults, ": cannot read ", path);
  }
  const bool is_json = absl::StartsWith(absl::StripLeadingAsciiWhitespace(text), "[");
  absl::StatusOr<FaultRules> parsed =
      is_json ? FaultRules::from_json(text) : FaultRules::parse(text);
  if (!parsed.ok()) return refuse(parsed.status().message());
  faults = *std::move(parsed);
  return true;
}

// The log that the variable names, if it does. Says so on stderr and returns false if there is
// none.
bool read_log(const Environment& environment, std::shared_ptr<const RunLog>& log) {
  const std::string path = environment.get_or(env::kSimulateReplay, "");
  if (path.empty()) return true;
  absl::StatusOr<RunLog> read = RunLog::read(path);
  if (!read.ok()) return refuse(env::kSimulateReplay, ": ", read.status().message());
  log = std::make_shared<RunLog>(*std::move(read));
  return true;
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

// Turns off what `names` lists. Says so on stderr and returns false if one of them is unknown.
bool turn_off_detectors(const std::string& names, ClusterOptions& options) {
  for (const absl::string_view name : absl::StrSplit(names, ',', absl::SkipEmpty())) {
    const auto* found = std::ranges::find(kDetectors, name, &Detector::name);
    if (found == std::end(kDetectors)) {
      return refuse(env::kSimulateNoDetect, "=\"", names, "\": \"", name,
                    "\" is not races, leaks or drift");
    }
    options.*found->option = false;
  }
  return true;
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

// Whether the choices go with the cluster. Says on stderr why they do not.
bool go_with_cluster(bool shapes, bool folds, const std::string& spec, const ClusterSpec& parsed) {
  if (shapes && !parsed.device) {
    return refuse(env::kSimulateNumerics, "=shapes needs devices, and ", spec,
                  " names none: name one, as in --simulate 2x4:h100");
  }
  if (folds && !shapes) {
    return refuse(env::kSimulateFold,
                  "=true needs runs without values, because a rank with values has its own: "
                  "add --simulate_numerics shapes");
  }
  return true;
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
        is_quiet_(environment.get_or(env::kSimulateQuiet, kFalse) == kTrue) {
    environment_.unset(kUseCpu);
  }

  // Returns the exit code.
  int run(const std::string& spec, int num_ranks, ClusterOptions options) {
    codes_.assign(num_ranks, 0);
    const bool has_faults = !options.faults.empty();
    options.environment = environment_;
    options.program = argc_ > 0 ? argv_[0] : "";
    options.repeat_command =
        repeat_line(environment_, std::vector<std::string>(argv_, argv_ + argc_));
    options.record = !summary_.empty();
    options.report_directory = report_;
    options.dump_folder =
        environment_.get_or(env::kDumpDir, report_.empty() ? "" : report_ + "/failure");
    const bool twice = environment_.get_or(env::kSimulateTwice, kFalse) == kTrue;
    if (!twice) return run_once(spec, std::move(options), has_faults);
    options.log = std::make_shared<RunLog>();
    options.log_names_work = true;
    const int code = run_once(spec, options, has_faults);
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
  int run_once(const std::string& spec, ClusterOptions options, bool has_faults) {
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
    cluster_->run_on_every_rank([&](Rank& rank) {
      // A copy for each rank, which may change it.
      std::vector<std::string> texts(argv_, argv_ + argc_);
      std::vector<char*> arguments;
      for (std::string& text : texts) arguments.push_back(text.data());
      arguments.push_back(nullptr);
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

int simulate(int argc, char** argv, const TrainFunction& train, const Environment& environment) {
  say_that_it_began(environment);
  const std::string spec = environment.get_or(env::kSimulate, "");
  uint64_t seed = 0;
  std::string numerics, unknown_values, fold, twice;
  std::shared_ptr<const RunLog> replay;
  uint64_t max_trace_slices = kMaxTraceSlices;
  if (!read_number(environment, env::kSimulateSeed, seed) ||
      !read_number(environment, env::kSimulateReportSlices, max_trace_slices) ||
      !read_word(environment, env::kSimulateNumerics, kReal, kShapes, numerics) ||
      !read_word(environment, env::kSimulateUnknownValues, kError, kNan, unknown_values) ||
      !read_word(environment, env::kSimulateFold, kFalse, kTrue, fold) ||
      !read_word(environment, env::kSimulateTwice, kFalse, kTrue, twice) ||
      !read_log(environment, replay)) {
    return kUsageError;
  }
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
    std::cerr << "accelerate: " << env::kSimulateReplay << ": the log has no seed" << std::endl;
    return kUsageError;
  }
  const absl::StatusOr<ClusterSpec> parsed = ClusterSpec::parse(spec);
  if (!parsed.ok()) {
    std::cerr << "accelerate: " << parsed.status().message() << std::endl;
    return kUsageError;
  }
  const bool shapes = numerics == kShapes;
  const bool folds = fold == kTrue;
  if (!go_with_cluster(shapes, folds, spec, *parsed)) return kUsageError;
  SimulatedRun run(argc, argv, train, settings);
  run.note_on_times(spec, parsed->device.has_value());
  UnknownValue unknown_value;
  if (unknown_values == kNan) {
    unknown_value = [](const std::string&) { return std::nan(""); };
  }
  ClusterOptions options = {.seed = seed,
                            .numerics = shapes ? Numerics::kShapes : Numerics::kReal,
                            .max_trace_slices = max_trace_slices,
                            .unknown_value = std::move(unknown_value),
                            .host_files_take_time = true};
  // Rank 0 may initialise the model, save and log.
  if (folds) {
    options.fold = Folding{.rank_0_apart = true, .mesh = mesh_of(run.environment(), *parsed)};
  }
  if (!read_faults(settings, options.faults) ||
      !read_member(settings, env::kSimulateTimeOuts, options.time_outs) ||
      !read_member(settings, env::kSimulateSemantics, options.semantics)) {
    return kUsageError;
  }
  options.log_file = environment.get_or(env::kSimulateLog, "");
  options.replay = std::move(replay);
  if (!options.faults.empty()) {
    options.mesh = mesh_of(run.environment(), *parsed);
    if (options.mesh && options.mesh->num_ranks() != parsed->world_size()) options.mesh.reset();
  }
  if (!turn_off_detectors(environment.get_or(env::kSimulateNoDetect, ""), options)) {
    return kUsageError;
  }
  const int code = run.run(spec, parsed->world_size(), std::move(options));
  check_standard_output();
  return code;
}

const bool registered = register_run_mode({.variable = env::kSimulate, .run = simulate});

}  // namespace
}  // namespace accelerate::simulator
