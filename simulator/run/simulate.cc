// The run mode of `accelerate launch --simulate SPEC`: every rank of the program in this process.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iostream>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/enum_text.h"
#include "accelerate/base/message_text.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/platform/environment.h"
#include "accelerate/process/run.h"
#include "accelerate/runtime/env_parsing.h"
#include "accelerate/values/texts.h"
#include "simulator/cluster/cluster.h"
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

// Names of detectors to turn off, between commas. Written by `accelerate launch --no_detect`.
constexpr char kNoDetect[] = "ACCELERATE_SIMULATE_NO_DETECT";

// The file for what summary.json of a report has, without the rest of the report. Set by
// `accelerate simulate --sweep`.
constexpr char kSummary[] = "ACCELERATE_SIMULATE_SUMMARY";

struct Detector {
  const char* name;
  bool ClusterOptions::* option;
};
constexpr Detector kDetectors[] = {{"races", &ClusterOptions::detect_races},
                                   {"leaks", &ClusterOptions::detect_leaks},
                                   {"drift", &ClusterOptions::detect_drift}};

// A copy of argv for one rank, which may change it.
class Arguments {
 public:
  Arguments(int argc, char** argv) : texts_(argv, argv + argc) {
    for (std::string& text : texts_) pointers_.push_back(text.data());
    pointers_.push_back(nullptr);
  }
  int argc() const { return static_cast<int>(texts_.size()); }
  char** argv() { return pointers_.data(); }

 private:
  std::vector<std::string> texts_;
  std::vector<char*> pointers_;
};

// What the run is besides its cluster; `--simulate_NAME VALUE` each for the command that repeats
// it.
struct Choices {
  uint64_t seed = 0;
  std::string numerics;
  std::string unknown_values;
  std::string fold;
  std::string no_detect;
};

// Settings of the launcher that change what ranks do, which it handed on as variables.
std::string settings_flags(const Environment& environment) {
  std::string flags;
  const auto append = [&](const std::string& variable, const std::string& flag, const char* usual) {
    const std::string value = environment.get_or(variable, usual);
    if (value != usual) absl::StrAppend(&flags, " --", flag, " ", shell_quoted(value));
  };
  append("ACCELERATE_MIXED_PRECISION", "mixed_precision", "no");
  append("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "gradient_accumulation_steps", "1");
  if (!parse_flag_from_env("ACCELERATE_USE_PARALLELISM_CONFIG", false, environment)) return flags;
  absl::StrAppend(&flags, " --use_parallelism_config");
  for (size_t i = 0; i < kNumPlainAxes; ++i) {
    const std::string axis = EnumTable<MeshAxis>::kTexts[i];
    append(absl::StrCat("PARALLELISM_CONFIG_", absl::AsciiStrToUpper(axis), "_SIZE"),
           absl::StrCat("parallelism_config_", axis, "_size"), "1");
  }
  append("PARALLELISM_CONFIG_PP_PLACEMENT", "parallelism_config_pp_placement", "outermost");
  return flags;
}

std::string repeat_command(int argc, char** argv, const std::string& spec, const Choices& choices,
                           const Environment& environment) {
  std::string command = absl::StrCat("accelerate launch --simulate ", shell_quoted(spec),
                                     " --simulate_seed ", choices.seed);
  if (choices.numerics != kReal) {
    absl::StrAppend(&command, " --simulate_numerics ", choices.numerics);
  }
  if (choices.unknown_values != kError) {
    absl::StrAppend(&command, " --simulate_unknown_values ", choices.unknown_values);
  }
  if (choices.fold == kTrue) absl::StrAppend(&command, " --simulate_fold");
  if (!choices.no_detect.empty()) absl::StrAppend(&command, " --no_detect ", choices.no_detect);
  command += settings_flags(environment);
  for (int i = 0; i < argc; ++i) absl::StrAppend(&command, " ", shell_quoted(argv[i]));
  return command;
}

// The number in a variable, or `number` as it is where the variable is unset. Says so on stderr and
// returns false if the text is something else.
template <typename Number>
bool read_number(const Environment& environment, const char* variable, Number& number) {
  const std::optional<std::string> text = environment.get(variable);
  if (!text || absl::SimpleAtoi(*text, &number)) return true;
  std::cerr << "accelerate: " << variable << "=\"" << *text << "\" is not an unsigned number"
            << std::endl;
  return false;
}

// The word in a variable, `usual` where it is unset. Says so on stderr and returns false if it is
// neither of the two.
bool read_word(const Environment& environment, const char* variable, const char* usual,
               const char* other, std::string& word) {
  word = environment.get_or(variable, usual);
  if (word == usual || word == other) return true;
  std::cerr << "accelerate: " << variable << "=\"" << word << "\" is neither " << usual << " nor "
            << other << std::endl;
  return false;
}

// Along the axes of the mesh that the settings describe; else all ranks are replicas.
Folding folding(const Environment& environment) {
  Folding folding;
  if (!parse_flag_from_env("ACCELERATE_USE_PARALLELISM_CONFIG", false, environment)) return folding;
  const Mesh mesh(ParallelismConfig({}, environment));
  // As an Accelerator does it, a configuration without any axis makes replicas of all ranks.
  if (mesh.num_ranks() > 1) folding.mesh = mesh;
  return folding;
}

// Turns off what `names` lists. Says so on stderr and returns false if one of them is unknown.
bool turn_off_detectors(const std::string& names, ClusterOptions& options) {
  for (const absl::string_view name : absl::StrSplit(names, ',', absl::SkipEmpty())) {
    const auto* found = std::ranges::find(kDetectors, name, &Detector::name);
    if (found == std::end(kDetectors)) {
      std::cerr << "accelerate: " << kNoDetect << "=\"" << names << "\": \"" << name
                << "\" is not races, leaks or drift" << std::endl;
      return false;
    }
    options.*found->option = false;
  }
  return true;
}

int simulate(int argc, char** argv, const TrainFunction& train, const Environment& environment) {
  const std::string spec = environment.get_or(env::kSimulate, "");
  Choices choices;
  uint64_t max_trace_slices = kMaxTraceSlices;
  if (!read_number(environment, env::kSimulateSeed, choices.seed) ||
      !read_number(environment, env::kSimulateReportSlices, max_trace_slices) ||
      !read_word(environment, env::kSimulateNumerics, kReal, kShapes, choices.numerics) ||
      !read_word(environment, env::kSimulateUnknownValues, kError, kNan, choices.unknown_values) ||
      !read_word(environment, env::kSimulateFold, kFalse, kTrue, choices.fold)) {
    return kUsageError;
  }
  const absl::StatusOr<ClusterSpec> parsed = ClusterSpec::parse(spec);
  if (!parsed.ok()) {
    std::cerr << "accelerate: " << parsed.status().message() << std::endl;
    return kUsageError;
  }
  const bool shapes = choices.numerics == kShapes;
  if (shapes && !parsed->device) {
    std::cerr << "accelerate: " << env::kSimulateNumerics << "=shapes needs devices, and " << spec
              << " names none: name one, as in --simulate 2x4:h100" << std::endl;
    return kUsageError;
  }
  const bool folds = choices.fold == kTrue;
  if (folds && !shapes) {
    std::cerr << "accelerate: " << env::kSimulateFold
              << "=true needs runs without values, because a rank with values has its own: add "
                 "--simulate_numerics shapes"
              << std::endl;
    return kUsageError;
  }
  const std::string report = environment.get_or(env::kSimulateReport, "");
  if (!report.empty() && !parsed->device) {
    std::cerr << "accelerate: the report in " << report << " has no times: " << spec
              << " names no hardware, so time is not modelled; name a device, as in "
                 "--simulate 2x4:h100"
              << std::endl;
  }
  UnknownValue unknown_value;
  if (choices.unknown_values == kNan) {
    unknown_value = [](const std::string&) { return std::nan(""); };
  }
  choices.no_detect = environment.get_or(kNoDetect, "");
  const std::string summary = environment.get_or(kSummary, "");
  ClusterOptions options = {
      .seed = choices.seed,
      .numerics = shapes ? Numerics::kShapes : Numerics::kReal,
      .fold = folds ? std::optional(folding(environment)) : std::nullopt,
      .environment = environment,
      .repeat_command = repeat_command(argc, argv, spec, choices, environment),
      .record = !summary.empty(),
      .report_directory = report,
      .max_trace_slices = max_trace_slices,
      .unknown_value = std::move(unknown_value),
      .host_files_take_time = true};
  if (!turn_off_detectors(choices.no_detect, options)) return kUsageError;
  std::vector<int> codes(parsed->world_size(), 0);
  std::optional<Cluster> cluster;
  const auto say_report = [&] {
    if (!summary.empty()) {
      const absl::Status written = write_summary(cluster->trace(), summary);
      if (!written.ok()) std::cerr << "accelerate: no summary: " << written.message() << std::endl;
    }
    if (report.empty()) return;
    for (const std::string& line : report_lines(cluster->trace(), report)) {
      std::cerr << "accelerate: " << line << std::endl;
    }
  };
  try {
    cluster.emplace(spec, std::move(options));
    cluster->run_on_every_rank([&](Rank& rank) {
      Arguments arguments(argc, argv);
      codes[rank.index()] = train(arguments.argc(), arguments.argv());
    });
    say_report();
  } catch (const ClusterError& error) {
    std::cerr << "accelerate: " << error.what() << std::endl;
    say_report();
    return 1;
  } catch (const std::exception& error) {
    // Of the cluster itself: a report that cannot be written, threads that cannot be started.
    std::cerr << "accelerate: " << exception_text(error) << std::endl;
    return 1;
  }
  for (size_t rank = 0; rank < codes.size(); ++rank) {
    if (codes[rank] == 0) continue;
    std::cerr << "accelerate: rank " << rank << " returned " << codes[rank] << std::endl;
    return codes[rank];
  }
  return 0;
}

const bool registered = register_run_mode({.variable = env::kSimulate, .run = simulate});

}  // namespace
}  // namespace accelerate::simulator
