// `accelerate config`: asks how to train and writes the configuration that launch reads.
//
//     accelerate config [--config_file PATH] [--set KEY=VALUE]...
//     accelerate config default [--config_file PATH] [--mixed_precision P] [--overwrite]
//     accelerate config update [--config_file PATH] [--set KEY=VALUE]...
// With --set nothing is asked: the configuration is this machine's default with these values, or
// with `update` the one that is there. A result that launch would refuse, or asks for what is not
// in this version, is not written: exit code 2, as launch would end. Where questions end without a
// file, the answers are shown as a command line. Mirrors: accelerate commands/config.

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/message_text.h"
#include "accelerate/base/status.h"
#include "launch/commands/commands.h"
#include "launch/dialogue/prompter.h"
#include "launch/dialogue/questionnaire.h"
#include "launch/process/process_plan.h"
#include "launch/settings/config_file.h"
#include "launch/settings/endpoint.h"
#include "launch/settings/machine.h"
#include "launch/settings/schema.h"
#include "launch/settings/settings.h"
#include "launch/settings/validate.h"
#include "launch/supervise/rank_group.h"

namespace accelerate::launcher::commands {

using settings::ConfigFile;
using settings::Section;
using settings::Settings;
namespace {

constexpr char kName[] = "config";

enum class Mode { kAsk, kDefault, kUpdate };

struct Options {
  Mode mode = Mode::kAsk;
  std::string config_file;
  std::string mixed_precision = "no";
  bool overwrite = false;
  std::vector<std::string> assignments;
};

absl::Status assign(ConfigFile& config, const std::vector<std::string>& assignments) {
  for (const std::string& assignment : assignments) {
    ACCELERATE_RETURN_IF_ERROR(dialogue::set_value(config, assignment));
    config.lines.clear();  // The values no longer stand where they did.
  }
  return absl::OkStatus();
}

// Fills in settings that were not given, as for this machine alone. SageMaker's, the simulated and
// those that make a distributed run are others, which have devices.
absl::Status fill_in(ConfigFile& config, const std::string& mixed_precision,
                     settings::Machine machine) {
  const std::string type = config.values.value("distributed_type", "NO");
  const bool is_elsewhere = config.is_sagemaker() || config.values.contains("simulate");
  if (is_elsewhere) machine = {.devices = 1};
  ACCELERATE_ASSIGN_OR_RETURN(ConfigFile basic, settings::basic_config(mixed_precision, machine));
  if (type != "NO") basic.values["use_cpu"] = type == "MULTI_CPU";
  // As many as launch takes: each machine has the same devices, and one device is not a
  // distributed run.
  const int64_t machines = std::max<int64_t>(config.values.value("num_machines", int64_t{1}), 1);
  const bool is_multi = absl::StartsWith(type, "MULTI_") && type != "MULTI_CPU";
  if (is_multi || machines > 1) {
    basic.values["num_processes"] =
        machines * std::max(machine.devices, is_multi && machines == 1 ? 2 : 1);
  }
  const Section top = config.is_sagemaker() ? Section::kSageMaker : Section::kTop;
  // How many ranks a simulated cluster has, it says itself.
  if (config.values.contains("simulate")) basic.values.erase("num_processes");
  for (const auto& [key, value] : basic.values.items()) {
    if (settings::find_key(top, key) != nullptr && !config.values.contains(key))
      config.values[key] = value;
  }
  return absl::OkStatus();
}

// Validates the file as launch would on a machine with all devices. The number of ranks may be
// left to its command line.
absl::Status check_for_launch(const ConfigFile& config, const std::string& path) {
  ACCELERATE_ASSIGN_OR_RETURN(ConfigFile file,
                              settings::parse_config(settings::config_to_yaml(config),
                                                     settings::ConfigFormat::kYaml, path));
  // Findings name the lines of the file that the user wrote, not those of the text made above.
  file.lines = config.lines;
  ACCELERATE_ASSIGN_OR_RETURN(Settings settings, Settings::resolve({}, &file, {}));
  ACCELERATE_RETURN_IF_ERROR(settings::check_status(settings));
  const int64_t ranks = settings.number("num_processes");
  const bool is_left_open = (ranks == 0 || ranks == -1) && !settings.is_set("simulate");
  if (is_left_open) {
    const int64_t machines = std::max<int64_t>(settings.number("num_machines"), 1);
    settings.set("num_processes", absl::StrCat(2 * machines), settings::Provenance::kDefault);
  }
  const absl::Status ok = settings::complete(settings, {.device_kind = "tpu"}, settings::Job());
  return ok.ok() && !is_left_open ? check_ranks(settings, settings::Job()) : ok;
}

// Asks; answers that come to nothing are shown, to be given again.
absl::StatusOr<ConfigFile> ask(const std::string& path, Invocation& invocation) {
  dialogue::Prompter prompter(invocation.in, invocation.out, invocation.is_interactive);
  const std::string host = supervise::host_name();
  const dialogue::Surroundings here = {
      .home = process::environment_value(invocation.environment, "HOME"),
      .machine = settings::this_machine(invocation.environment),
      .host_name = settings::check_host(host).ok() ? host : "localhost",
      .tpu_name = process::environment_value(invocation.environment, "TPU_NAME"),
      .check_cluster = [](const std::string& text) { return ranks_of_cluster(text).status(); }};
  ConfigFile config;
  absl::Status asked = dialogue::ask_configuration(prompter, here, config);
  if (asked.ok()) asked = check_for_launch(config, path);
  if (asked.ok()) return config;
  if (const std::vector<std::string> answers = dialogue::assignments_of(config);
      answers.size() > 1) {
    std::vector<std::string> words = {"accelerate", kName, "--config_file", path};
    for (const std::string& answer : answers) words.insert(words.end(), {"--set", answer});
    invocation.out << "The answers so far, as a command: " << shell_line(words) << "\n";
  }
  return asked;
}

// Where the configuration is written, and the one that is there.
struct Files {
  std::string path;
  /// Another than `path` if it is HF Accelerate's, which is only read.
  std::string found;
};

std::string written_text(const Files& files) {
  const std::string text = absl::StrCat("The configuration was written to ", files.path);
  if (files.found == files.path) return text;
  return absl::StrCat(text, ", which is read in place of ", files.found);
}

// The fields of a configuration by their place, "fsdp_config.fsdp_version", as a file shows them.
std::map<std::string, std::string> field_texts(const ConfigFile& config) {
  std::map<std::string, std::string> texts;
  const nlohmann::ordered_json fields = settings::all_fields(config);
  for (const auto& [key, value] : fields.items()) {
    if (!value.is_object()) {
      if (!value.is_null()) texts[key] = json_text(value);
      continue;
    }
    for (const auto& [inner, inner_value] : value.items()) {
      if (!inner_value.is_null()) texts[absl::StrCat(key, ".", inner)] = json_text(inner_value);
    }
  }
  return texts;
}

// A line for each field that changed: "  num_processes: 1 -> 4".
std::string changes_text(const ConfigFile& before, const ConfigFile& after) {
  const std::map<std::string, std::string> old_texts = field_texts(before);
  const std::map<std::string, std::string> new_texts = field_texts(after);
  const auto in = [](const auto& texts, const std::string& key) {
    const auto found = texts.find(key);
    return found == texts.end() ? std::string("not set") : found->second;
  };
  std::string text;
  std::map<std::string, std::string> all = old_texts;
  all.insert(new_texts.begin(), new_texts.end());
  for (const auto& [key, unused] : all) {
    if (in(old_texts, key) == in(new_texts, key)) continue;
    absl::StrAppend(&text, "\n  ", key, ": ", in(old_texts, key), " -> ", in(new_texts, key));
  }
  return text;
}

absl::StatusOr<std::string> update(const Options& options, const Files& files,
                                   Invocation& invocation) {
  ACCELERATE_ASSIGN_OR_RETURN(ConfigFile config, settings::load_config_file(files.found));
  for (const std::string& note : config.notes) {
    invocation.err << "accelerate config: note: " << note << "\n";
  }
  const ConfigFile before = config;
  ACCELERATE_RETURN_IF_ERROR(assign(config, options.assignments));
  ACCELERATE_RETURN_IF_ERROR(check_for_launch(config, files.found));
  ACCELERATE_RETURN_IF_ERROR(settings::write_config_file(config, files.path));
  const std::string changes = changes_text(before, config);
  if (files.found != files.path) return absl::StrCat(written_text(files), changes);
  if (changes.empty()) return absl::StrCat("The configuration ", files.path, " is up to date.");
  return absl::StrCat("The configuration ", files.path, " was changed:", changes);
}

absl::StatusOr<std::string> run_mode(const Options& options, const Files& files,
                                     Invocation& invocation) {
  const std::string& path = files.path;
  if (options.mode == Mode::kUpdate) return update(options, files, invocation);
  if (options.mode == Mode::kDefault) {
    ACCELERATE_ASSIGN_OR_RETURN(
        const ConfigFile config,
        settings::basic_config(options.mixed_precision,
                               settings::this_machine(invocation.environment)));
    if (!options.overwrite && settings::file_exists(path)) {
      return absl::AlreadyExistsError(
          absl::StrCat("there is a configuration ", path,
                       " already; the file is unchanged. To make another, give --overwrite, or "
                       "another --config_file"));
    }
    ACCELERATE_RETURN_IF_ERROR(settings::write_config_file(config, path));
    return written_text(files);
  }
  ConfigFile config;
  if (options.assignments.empty()) {
    ACCELERATE_ASSIGN_OR_RETURN(config, ask(path, invocation));
  } else {
    ACCELERATE_RETURN_IF_ERROR(assign(config, options.assignments));
    ACCELERATE_RETURN_IF_ERROR(
        fill_in(config, options.mixed_precision, settings::this_machine(invocation.environment)));
    if (settings::file_exists(path)) {
      return absl::AlreadyExistsError(
          absl::StrCat("there is a configuration ", path,
                       " already; change it with accelerate config update "
                       "--set, or remove it to make another"));
    }
  }
  ACCELERATE_RETURN_IF_ERROR(check_for_launch(config, path));
  ACCELERATE_RETURN_IF_ERROR(settings::write_config_file(config, path));
  return written_text(files);
}

int run(const Options& options, Invocation& invocation) {
  Files files = {options.config_file, options.config_file};
  if (options.config_file.empty()) {
    files = {settings::default_config_path(invocation.environment),
             settings::found_default_config(invocation.environment)};
  }
  const absl::StatusOr<std::string> said = run_mode(options, files, invocation);
  if (!said.ok()) {
    const bool is_users =
        absl::IsInvalidArgument(said.status()) || absl::IsUnimplemented(said.status());
    return fail(invocation, kName, said.status(),
                is_users ? kExitBadCommandLine : kExitLauncherFailed);
  }
  invocation.out << *said << "\n";
  return finish(invocation);
}

void add_config_file(CLI::App& app, Options& options) {
  add_value(app, "--config_file", options.config_file, "PATH",
            "where the configuration is; default: default_config.yaml in "
            "$HF_HOME/accelerate-cpp or ~/.config/accelerate-cpp");
}

void add_assignments(CLI::App& app, Options& options) {
  add_value(app, "--set", options.assignments, "KEY=VALUE",
            "a setting, instead of questions; may be repeated. Nothing after = takes KEY out")
      ->expected(1)
      ->take_all();
}

void declare(CLI::App& app, Options& options) {
  app.require_subcommand(0, 1);
  add_config_file(app, options);
  add_assignments(app, options);
  CLI::App& make = *app.add_subcommand("default", "Write a configuration for this machine alone.");
  add_config_file(make, options);
  add_value(make, "--mixed_precision", options.mixed_precision, "PRECISION",
            "no, fp16, bf16 or fp8");
  make.add_flag("--overwrite", options.overwrite, "replace the file that is there");
  make.callback([&options] { options.mode = Mode::kDefault; });
  CLI::App& renew =
      *app.add_subcommand("update", "Write the configuration that is there in its present form.");
  add_config_file(renew, options);
  add_assignments(renew, options);
  renew.callback([&options] { options.mode = Mode::kUpdate; });
}

}  // namespace

const Command kConfig = {kName, "Ask how to train, and write the configuration.",
                         with_options<declare, run>};

}  // namespace accelerate::launcher::commands
