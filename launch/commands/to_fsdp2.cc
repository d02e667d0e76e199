// `accelerate to-fsdp2`: a configuration for FSDP 1 as one for FSDP 2.
//
// Mirrors: accelerate commands/to_fsdp2.py.
// Differs: the file is checked as launch checks it; unknown keys are an error.

#include <set>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/status.h"
#include "launch/commands/commands.h"
#include "launch/settings/machine.h"
#include "launch/settings/schema.h"

namespace accelerate::launcher::commands {

using settings::ConfigFile;
namespace {

using Json = nlohmann::ordered_json;

constexpr char kName[] = "to-fsdp2";
constexpr char kSection[] = "fsdp_config";
constexpr char kVersionKey[] = "fsdp_version";
constexpr char kReshardKey[] = "fsdp_reshard_after_forward";

std::string word_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : json_text(value);
}

// Whether parameters are freed after forward; strategies by name or by the number of older files.
Json reshards(const Json& strategy) {
  const std::string word = absl::AsciiStrToUpper(word_of(strategy));
  const std::set<std::string> resharding = {"FULL_SHARD", "1", "HYBRID_SHARD", "4", "TRUE"};
  return resharding.contains(word);
}

int run(const ToFsdp2Options& options, Invocation& invocation) {
  std::vector<Notice> notices;
  const absl::StatusOr<std::string> output = to_fsdp2(options, notices);
  for (const Notice& notice : notices) {
    invocation.err << "accelerate " << kName << ": " << (notice.is_warning ? "warning: " : "")
                   << notice.text << "\n";
  }
  if (!output.ok()) return fail(invocation, kName, output.status());
  invocation.out << "written: " << *output << "\n";
  return finish(invocation);
}

void declare(CLI::App& app, ToFsdp2Options& options) {
  add_value(app, "--config_file", options.config_file, "PATH", "the configuration to convert")
      ->required();
  add_value(app, "--output_file", options.output_file, "PATH", "where the result goes");
  app.add_flag("--overwrite", options.overwrite, "replace the file that is there");
}

}  // namespace

absl::StatusOr<std::string> to_fsdp2(const ToFsdp2Options& options, std::vector<Notice>& notices) {
  absl::StatusOr<ConfigFile> config = settings::load_config_file(options.config_file);
  if (!config.ok() && absl::IsNotFound(config.status())) return config.status();
  if (!options.overwrite && options.output_file.empty()) {
    return absl::InvalidArgumentError(
        "say where the result goes: --output_file PATH, or --overwrite for the same file");
  }
  if (!options.overwrite && settings::file_exists(options.output_file)) {
    return absl::AlreadyExistsError(
        absl::StrCat(options.output_file, " is there already; --overwrite replaces it"));
  }
  if (!config.ok()) return config.status();
  for (const std::string& note : config->notes) notices.push_back({true, note});
  convert_to_fsdp2(*config, notices);
  const std::string output =
      options.output_file.empty() ? options.config_file : options.output_file;
  ACCELERATE_RETURN_IF_ERROR(settings::write_config_file(*config, output));
  return output;
}

bool convert_to_fsdp2(ConfigFile& config, std::vector<Notice>& notices) {
  const auto warn = [&](std::string text) { notices.push_back({true, std::move(text)}); };
  const auto section = config.values.find(kSection);
  if (section == config.values.end() || section->empty()) {
    notices.push_back({false, "No FSDP config found in the config file, skipping conversion..."});
    return false;
  }
  Json converted = {{kVersionKey, 2}};
  for (const auto& [key, value] : section->items()) {
    const std::string name = settings::find_key(settings::Section::kFsdp, key)->name;
    if (name == kVersionKey) {
      if (word_of(value) != "2") continue;
      warn("Config already specifies FSDP2, skipping conversion...");
      warn(
          "If the config doesn't use new argument names, change `fsdp_version` to `1` and rerun "
          "the command.");
      return false;
    }
    if (value.is_null()) continue;
    if (name == "fsdp_sharding_strategy" || name == kReshardKey) {
      converted[kReshardKey] = reshards(value);
    } else if (name == "fsdp_forward_prefetch") {
      warn(absl::StrCat("Argument ", name,
                        " is not yet implemented in FSDP2, skipping this key..."));
    } else if (name == "fsdp_backward_prefetch" || name == "fsdp_sync_module_states" ||
               name == "fsdp_use_orig_params") {
      warn(absl::StrCat("Argument ", name, " has been removed in FSDP2, skipping this key..."));
    } else {
      converted[name] = value;
    }
  }
  *section = std::move(converted);
  return true;
}

const Command kToFsdp2 = {kName, "Convert a configuration for FSDP 1 to FSDP 2.",
                          with_options<declare, run>};

}  // namespace accelerate::launcher::commands
