#include "accelerate/platform/simulated_run.h"

#include <algorithm>
#include <fstream>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/message_text.h"

namespace accelerate {
namespace {

// The beginnings of names.
constexpr absl::string_view kRunVariables[] = {
    "ACCELERATE_",         "FSDP_",
    "PARALLELISM_CONFIG_", "MEGATRON_LM_",
    "PYTORCH_ALLOC_CONF",  "PYTORCH_CUDA_ALLOC_CONF",
};

// The variables, of these and others, that a simulated run reads: not what ranks compute on, which
// its cluster says, and not whether collectives are compared, which they always are. The last three
// decide the last bits of values that a CPU computes.
constexpr absl::string_view kShaping[] = {
    "ACCELERATE_MIXED_PRECISION",
    "ACCELERATE_GRADIENT_",
    "ACCELERATE_FP8_",
    "ACCELERATE_USE_DEEPSPEED",
    "ACCELERATE_USE_FSDP",
    "ACCELERATE_USE_MEGATRON_LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG",
    "ACCELERATE_DEEPSPEED_",
    "ACCELERATE_CONFIG_DS_FIELDS",
    "ACCELERATE_DYNAMO_",
    "ACCELERATE_BYPASS_DEVICE_MAP",
    "ACCELERATE_INIT_INCLUDE_BUFFERS",
    "FSDP_",
    "PARALLELISM_CONFIG_",
    "MEGATRON_LM_",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "OMP_NUM_THREADS",
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
};

template <typename Names>
bool begins_with_any(absl::string_view name, const Names& beginnings) {
  return std::ranges::any_of(
      beginnings, [&](absl::string_view beginning) { return absl::StartsWith(name, beginning); });
}

}  // namespace

bool is_run_variable(absl::string_view name) { return begins_with_any(name, kRunVariables); }

std::vector<std::string> shaping_variables(const std::map<std::string, std::string>& variables) {
  std::vector<std::string> words;
  for (const auto& [name, value] : variables) {
    // One thread is what a simulated run takes without the variable.
    const bool is_usual = name == "OMP_NUM_THREADS" && value == "1";
    if (begins_with_any(name, kShaping) && !is_usual) {
      words.push_back(absl::StrCat(name, "=", shell_quoted(value)));
    }
  }
  return words;
}

std::vector<std::string> command_line() {
  std::vector<std::string> words;
  std::ifstream file("/proc/self/cmdline");
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  if (words.empty()) words.emplace_back("program");
  return words;
}

std::string repeat_line(const Environment& environment, absl::Span<const std::string> program) {
  const std::optional<std::string> flags = environment.get(env::kSimulateFlags);
  // Without the launcher the variables are all that there is.
  const std::string variables =
      flags ? environment.get_or(env::kSimulateVariables, "")
            : absl::StrJoin(shaping_variables(environment.variables()), " ");
  std::string line =
      absl::StrCat(variables, variables.empty() ? "" : " ", "accelerate launch --simulate ",
                   shell_quoted(environment.get_or(env::kSimulate, "")), " --simulate_seed ",
                   shell_quoted(environment.get_or(env::kSimulateSeed, "0")));
  const auto append = [&](const char* variable, const char* flag, const char* usual) {
    const std::string value = environment.get_or(variable, usual);
    if (value != usual) absl::StrAppend(&line, " --", flag, " ", shell_quoted(value));
  };
  append(env::kSimulateNumerics, "simulate_numerics", "real");
  append(env::kSimulateUnknownValues, "simulate_unknown_values", "error");
  if (environment.get_or(env::kSimulateFold, "false") == "true") {
    absl::StrAppend(&line, " --simulate_fold");
  }
  append(env::kSimulateNoDetect, "no_detect", "");
  append(env::kSimulateFaults, "faults", "");
  append(env::kSimulateTimeOuts, "timeouts", "diagnose");
  append(env::kSimulateSemantics, "semantics", "any");
  if (flags && !flags->empty()) absl::StrAppend(&line, " ", *flags);
  return absl::StrCat(line, " --no_default_config ", shell_line(program));
}

}  // namespace accelerate
