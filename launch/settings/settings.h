/// Every setting of a run, and where each value came from.
///
/// A flag on the command line wins over the configuration file, that over the environment, that
/// over the built-in default: also a flag that equals the default.
/// Errors:  InvalidArgument, one line that names the flag, the file with line and key, or the
///          variable, and what is wrong.
/// Threads: a value.
/// Mirrors: accelerate commands/launch.py, _validate_launch_command, the part that merges.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "accelerate/base/enum_text.h"
#include "launch/settings/config_file.h"
#include "launch/settings/schema.h"

namespace CLI {
class App;
}

namespace accelerate::launcher::settings {

/// The typed flags: settings by name to their values, in the order of the command line. A flag
/// without a value has "true" or, negated, "false".
using TypedFlags = std::map<std::string, std::vector<std::string>>;

enum class Provenance { kDefault, kMachine, kEnvironment, kConfigFile, kFlag };

class Settings {
 public:
  struct Value {
    /// One; any number for ValueType::kTexts.
    std::vector<std::string> texts;
    Provenance provenance = Provenance::kDefault;
    /// "--num_processes", "config.yaml:3", "FSDP_VERSION"; empty for defaults.
    std::string where;
  };

  /// `environment` holds `NAME=value` words. Without a configuration file, `config` is null.
  static absl::StatusOr<Settings> resolve(const TypedFlags& typed, const ConfigFile* config,
                                          absl::Span<const std::string> environment);

  /// Whether there is a value at all, be it a default.
  bool is_set(absl::string_view name) const;
  Provenance provenance(absl::string_view name) const;
  bool is_typed(absl::string_view name) const { return provenance(name) == Provenance::kFlag; }

  /// The value in the type of the schema. `name` is one of the schema's; of an unset one the
  /// text is empty and the number 0.
  std::string text(absl::string_view name) const;
  std::vector<std::string> texts(absl::string_view name) const;
  bool flag(absl::string_view name) const;
  int64_t number(absl::string_view name) const;
  double real(absl::string_view name) const;

  /// For what follows from the machine or from other settings.
  void set(absl::string_view name, std::string text, Provenance provenance, std::string where = "");

  /// Back to the default value, or to none.
  void forget(absl::string_view name);

  /// Whether the value, wherever it comes from, is what a run without it has.
  bool is_default(absl::string_view name) const;

  /// How errors call the value: "--num_processes=3", "config.yaml:3: num_processes: 3",
  /// "config.yaml:1: distributed_type: FSDP" for --use_fsdp.
  std::string describe(absl::string_view name) const;

  /// Whether a configuration file was read, and which.
  const std::string& config_path() const { return config_path_; }
  bool has_config() const { return has_config_; }
  bool is_sagemaker() const { return is_sagemaker_; }
  /// ConfigFile::notes.
  const std::vector<std::string>& notes() const { return notes_; }
  /// Keys of the file's section, as they stand there and in its order.
  const std::vector<std::string>& deepspeed_keys() const { return deepspeed_keys_; }

  /// `name = value  (where)`, a line each, in the order of the schema; credentials are hidden. For
  /// --print_config. Without `all`, values that are the defaults are counted only.
  std::string to_text(bool all) const;

 private:
  const Value* find(absl::string_view name) const;
  absl::Status apply_environment(const Setting& row, absl::Span<const std::string> environment);
  void apply_config(const ConfigFile& config);
  void apply_key(const ConfigFile& config, const Setting& row, const nlohmann::ordered_json& value,
                 const std::string& key);
  void apply_distributed_type(const ConfigFile& config, const TypedFlags& typed);

  std::map<std::string, Value, std::less<>> values_;
  std::string config_path_;
  bool has_config_ = false;
  bool is_sagemaker_ = false;
  std::vector<std::string> notes_;
  std::vector<std::string> deepspeed_keys_;
};

// The schema's flags on a command line.
//
// Options end at the first word that is neither an option nor its value: that word is the program,
// and everything after it is the program's, including `--help` and `--`. A `--` before the program
// is skipped. Names may be spelt with `_` or `-`; the last value of a repeated flag counts, unless
// it takes several.
// Errors: InvalidArgument, one line that names the flag.
// Mirrors: accelerate commands/launch.py, CustomArgumentParser.

struct LaunchWords {
  /// One word a flag: "--name" or "--name=value", names as in the schema.
  std::vector<std::string> options;
  std::vector<std::string> program;
  /// The group of --help=fsdp.
  std::optional<Group> help_group = {};
};

/// Separates options from the program. Flags of `app` itself (--help) are options too.
absl::StatusOr<LaunchWords> split_launch_words(const CLI::App& app,
                                               absl::Span<const std::string> args);

/// Makes a flag of every row that has one. What is parsed goes to `typed`, which lives as long as
/// the application. The help shows the common ones, under their groups' headings; for --help=all
/// parsing throws CLI::CallForAllHelp.
void declare_flags(CLI::App& app, TypedFlags& typed);

/// Has the help show the flags of one group alone, whether they are common or not; without a group
/// those of all, for --help=all.
void show_flags(CLI::App& app, std::optional<Group> group = std::nullopt);

/// "--name" or "--name=value" for all that was typed, in the order of the schema.
std::vector<std::string> typed_words(const TypedFlags& typed);

/// The words that give ranks the settings that are not the default ones, wherever those came from:
/// flags and their values, in the order of the schema. What is not for ranks (machines, logs, the
/// simulation itself) is left out. A default value is there where `environment` has the setting's
/// variable, which would count in its place.
std::vector<std::string> settings_words(const Settings& settings,
                                        absl::Span<const std::string> environment);

/// The table of accelerate/docs/launch_options.md.
std::string options_markdown();

}  // namespace accelerate::launcher::settings

namespace accelerate {

ACCELERATE_ENUM_TEXTS(launcher::settings::Provenance, "provenance", "default", "machine",
                      "environment", "config file", "flag")

}  // namespace accelerate
