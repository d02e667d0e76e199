// `accelerate tpu-config`: runs commands on every worker of a TPU pod, through gcloud.
//
// Mirrors: accelerate commands/tpu.py.
// Differs: --install_command says how accelerate is installed there, because pip's accelerate is HF
// Accelerate; a pod without name or zone is an error.

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/status.h"
#include "launch/commands/commands.h"
#include "launch/process/child_process.h"
#include "launch/settings/config_file.h"
#include "launch/settings/machine.h"

namespace accelerate::launcher::commands {

using settings::ConfigFile;
namespace {

constexpr char kName[] = "tpu-config";

struct Options {
  std::string config_file;
  std::string tpu_name;
  std::string tpu_zone;
  bool use_alpha = false;
  std::string command_file;
  std::vector<std::string> commands;
  bool install_accelerate = false;
  std::string accelerate_version;
  std::string install_command;
  bool debug = false;
};

std::string text_in(const ConfigFile& config, const char* key) {
  const auto found = config.values.find(key);
  return found != config.values.end() && found->is_string() ? found->get<std::string>() : "";
}

// Whatever was not typed comes from the configuration, where there is one.
absl::Status take_configuration(Options& options, const Invocation& invocation) {
  std::string path = options.config_file;
  if (path.empty()) {
    path = settings::found_default_config(invocation.environment);
    if (!settings::file_exists(path)) return absl::OkStatus();
  }
  ACCELERATE_ASSIGN_OR_RETURN(const ConfigFile config, settings::load_config_file(path));
  if (options.command_file.empty() && options.commands.empty()) {
    options.command_file = text_in(config, "command_file");
    const auto commands = config.values.find("commands");
    if (commands != config.values.end() && commands->is_array()) {
      for (const auto& command : *commands) options.commands.push_back(command);
    }
  }
  if (options.tpu_name.empty()) options.tpu_name = text_in(config, "tpu_name");
  if (options.tpu_zone.empty()) options.tpu_zone = text_in(config, "tpu_zone");
  return absl::OkStatus();
}

absl::Status check_installation(const Options& options) {
  if (!options.accelerate_version.empty()) {
    return invalid("--accelerate_version=", options.accelerate_version,
                   " names a release of HF Accelerate, which is another program; say with "
                   "--install_command how this one gets to the workers");
  }
  if (options.install_accelerate && options.install_command.empty()) {
    return absl::InvalidArgumentError(
        "--install_accelerate needs --install_command, which says how this program gets to the "
        "workers: no package index has it, and pip's accelerate is HF Accelerate");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> gcloud_line(Options options,
                                                     const Invocation& invocation) {
  ACCELERATE_RETURN_IF_ERROR(check_installation(options));
  ACCELERATE_RETURN_IF_ERROR(take_configuration(options, invocation));
  if (!options.command_file.empty()) {
    std::ifstream file(options.command_file);
    if (!file) return absl::NotFoundError(absl::StrCat(options.command_file, " cannot be read"));
    options.commands.clear();
    for (std::string line; std::getline(file, line);) options.commands.push_back(line);
  }
  if (options.commands.empty()) {
    return absl::InvalidArgumentError(
        "there is nothing to run: give --command or --command_file, or have commands in the "
        "configuration");
  }
  for (const auto& [name, value] :
       {std::pair("tpu_name", &options.tpu_name), std::pair("tpu_zone", &options.tpu_zone)}) {
    if (!value->empty()) continue;
    return invalid("which pod? Give --", name, ", or have it in the configuration");
  }
  std::vector<std::string> steps = {"cd /usr/share"};
  if (options.install_accelerate) steps.push_back(options.install_command);
  steps.insert(steps.end(), options.commands.begin(), options.commands.end());
  std::vector<std::string> line = {"gcloud"};
  if (options.use_alpha) line.push_back("alpha");
  line.insert(line.end(),
              {"compute", "tpus", "tpu-vm", "ssh", options.tpu_name, "--zone", options.tpu_zone,
               "--command", absl::StrJoin(steps, "; "), "--worker", "all"});
  return line;
}

int run(const Options& options, Invocation& invocation) {
  const absl::StatusOr<std::vector<std::string>> line = gcloud_line(options, invocation);
  if (!line.ok()) return fail_or_refuse(invocation, kName, line.status());
  if (options.debug) {
    invocation.out << "Running " << absl::StrJoin(*line, " ") << "\n";
    return finish(invocation);
  }
  const absl::StatusOr<int> exit_code = process::run_program(*line, invocation.environment);
  if (!exit_code.ok()) return fail(invocation, kName, exit_code.status(), kExitNotFound);
  if (*exit_code != 0) {
    return fail(invocation, kName, absl::StrCat("gcloud ended with exit code ", *exit_code),
                *exit_code);
  }
  invocation.out << "The pod is set up.\n";
  return finish(invocation);
}

void declare(CLI::App& app, Options& options) {
  add_value(app, "--config_file", options.config_file, "PATH",
            "configuration for what is not given here");
  add_value(app, "--tpu_name", options.tpu_name, "NAME", "the pod");
  add_value(app, "--tpu_zone", options.tpu_zone, "ZONE", "where it is");
  app.add_flag("--use_alpha,--alpha", options.use_alpha, "use gcloud alpha");
  add_value(app, "--command_file", options.command_file, "PATH", "commands to run, a line each");
  add_value(app, "--command", options.commands, "TEXT", "a command to run; may be repeated")
      ->expected(1, 1024)
      ->allow_extra_args(false)
      ->take_all();
  app.add_flag("--install_accelerate", options.install_accelerate, "run --install_command first");
  add_value(app, "--accelerate_version", options.accelerate_version, "VERSION",
            "refused: --install_command says what is installed");
  add_value(app, "--install_command", options.install_command, "TEXT",
            "how this program gets to the workers, for example by a copy");
  app.add_flag("--debug", options.debug, "print the line and run nothing");
}

}  // namespace

const Command kTpuConfig = {kName, "Run commands on every worker of a TPU pod.",
                            with_options<declare, run>};

}  // namespace accelerate::launcher::commands
