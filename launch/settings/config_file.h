/// A configuration file: YAML or JSON, of this release or an older one, written by this library or
/// by HF Accelerate.
///
/// What is read is checked against the schema and brought to its present form; nothing is lost or
/// made up but the defaults that HF Accelerate writes as well. YAML is read as HF Accelerate reads
/// it (accelerate/base/document.h), and written so that either version of YAML reads it back.
/// Errors:  one line that names the file, and the line in the file if there is one. NotFound where
///          there is not a file, InvalidArgument for a wrong one.
/// Threads: any.
/// Mirrors: accelerate commands/config/config_args.py, config_utils.py and default.py.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "launch/settings/machine.h"

namespace accelerate::launcher::settings {

/// The content of a file that was checked. Keys that were not in it are not in here.
struct ConfigFile {
  /// The path as the user gave it; empty for a configuration that was not read from a file.
  std::string path;
  /// Keys of the schema to scalars or lists of texts; sections ("fsdp_config") to objects of such,
  /// in the order of the file. Null stands for what the file sets to nothing.
  nlohmann::ordered_json values = nlohmann::ordered_json::object();
  /// Lines by key, "fsdp_config.fsdp_version"; from 1.
  std::map<std::string, int> lines;
  /// What the reader of the file should know, a line each: a key that stands twice.
  std::vector<std::string> notes;

  bool is_sagemaker() const;
};

enum class ConfigFormat { kYaml, kJson };

/// By the end of the name: `.json` is JSON, everything else YAML.
ConfigFormat config_format(absl::string_view path);

/// The file that `accelerate config` writes where none is named: `default_config.yaml`, or the
/// `.json` one if only that is there, in `accelerate-cpp` in $HF_HOME, in $XDG_CONFIG_HOME or in
/// ~/.config. `environment` holds `NAME=value` words.
std::string default_config_path(absl::Span<const std::string> environment);

/// The file that is read where none is named: that one, else HF Accelerate's, which is in
/// `accelerate` in $HF_HOME, in $XDG_CACHE_HOME/huggingface or in ~/.cache/huggingface. Without
/// either the first, which does not exist.
std::string found_default_config(absl::Span<const std::string> environment);

/// Reads and checks.
absl::StatusOr<ConfigFile> load_config_file(const std::string& path);

/// The same for a text; `path` is what errors call it.
absl::StatusOr<ConfigFile> parse_config(const std::string& text, ConfigFormat format,
                                        const std::string& path);

/// All fields with their defaults, as HF Accelerate's classes have them: what `config_to_yaml`
/// leaves out is null or {} here.
nlohmann::ordered_json all_fields(const ConfigFile& config);

/// Keys sorted; what is null or empty is left out.
std::string config_to_yaml(const ConfigFile& config);
std::string config_to_json(const ConfigFile& config);

/// In the format that the name asks for, by `replace_file`; folders are made.
absl::Status write_config_file(const ConfigFile& config, const std::string& path);

/// A configuration for this machine alone: all devices, else the CPU.
/// Errors: InvalidArgument for a precision that there is not.
absl::StatusOr<ConfigFile> basic_config(absl::string_view mixed_precision, const Machine& machine);

/// Makes a file of it. True if it was written; false if there is a file already, which is left as
/// it is. Errors: as above, and Unavailable if it cannot be written.
absl::StatusOr<bool> write_basic_config(absl::string_view mixed_precision, const std::string& path,
                                        const Machine& machine);

}  // namespace accelerate::launcher::settings
