#include "launch/commands/commands.h"

#include <algorithm>

#include <CLI/CLI.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "accelerate/base/status.h"
#include "launch/commands/probe.h"
#include "launch/process/child_process.h"
#include "launch/process/terminal_colour.h"
#include "launch/settings/machine.h"

namespace accelerate::launcher::commands {
namespace {

constexpr const char* kLinks[] = {"accelerate-config", "accelerate-estimate-memory",
                                  "accelerate-launch", "accelerate-merge-weights"};

const CLI::Option* find_option(const CLI::App& app, const std::string& name) {
  if (const CLI::Option* option = app.get_option_no_throw(name)) return option;
  for (const CLI::App* subcommand : app.get_subcommands(nullptr)) {
    if (const CLI::Option* option = subcommand->get_option_no_throw(name)) return option;
  }
  return nullptr;
}

// Whether --sweep or --fit, which name clusters, stand before a `--`.
bool names_clusters(absl::Span<const std::string> words) {
  for (const std::string& word : words) {
    if (word == "--") return false;
    for (const absl::string_view flag : {"--sweep", "--fit"}) {
      if (word == flag || absl::StartsWith(word, absl::StrCat(flag, "="))) return true;
    }
  }
  return false;
}

}  // namespace

std::string called_name(const Invocation& invocation, absl::string_view command) {
  return std::string(invocation.called == kSimulate.name ? kSimulate.name : command);
}

int fail(Invocation& invocation, absl::string_view command, absl::string_view why, int exit_code) {
  const std::string name =
      command.empty() ? "" : absl::StrCat(" ", called_name(invocation, command));
  invocation.err << process::as_error(absl::StrCat("accelerate", name, ": ", why),
                                      invocation.err_has_colour)
                 << std::endl;
  return exit_code;
}

absl::StatusOr<std::string> find_program(const Invocation& invocation, const std::string& program) {
  return process::find_program(program, process::search_path_of(invocation.environment));
}

int start_failure_code(const absl::Status& status) {
  if (absl::IsNotFound(status)) return kExitNotFound;
  if (absl::IsPermissionDenied(status)) return kExitNotExecutable;
  return kExitLauncherFailed;
}

absl::StatusOr<std::string> find_companion(const Invocation& invocation, absl::string_view what,
                                           absl::string_view name) {
  const std::string program = companion_path(invocation.executable, name);
  if (!settings::file_exists(program)) {
    return absl::NotFoundError(absl::StrCat("there is no ", what, " ", program,
                                            "; install the whole project with CMake, or build "
                                            "//launch:accelerate with Bazel, which brings it "
                                            "along"));
  }
  ACCELERATE_RETURN_IF_ERROR(check_libtorch(invocation.executable, program));
  return program;
}

int run_companion(Invocation& invocation, absl::string_view command, absl::string_view name,
                  std::vector<std::string> arguments) {
  const absl::StatusOr<std::string> program = find_companion(invocation, "program", name);
  if (!program.ok()) return fail_to_start(invocation, command, program.status());
  invocation.out.flush();
  arguments.insert(arguments.begin(), *program);
  const absl::StatusOr<int> exit_code = process::run_program(arguments, invocation.environment);
  return exit_code.ok() ? *exit_code : fail(invocation, command, exit_code.status());
}

int finish(Invocation& invocation) {
  invocation.out.flush();
  if (invocation.out) return 0;
  return fail(invocation, "", "standard output is closed or cannot be written");
}

absl::Span<const Command> all_commands() {
  static const Command kCommands[] = {kLaunch,         kSimulate,   kPerf,         kCompile,
                                      kConfig,         kTest,       kEnv,          kToFsdp2,
                                      kEstimateMemory, kPlan,       kMergeWeights, kPreprocess,
                                      kTpuConfig,      kInstallXla, kCompletion,   kMan};
  return kCommands;
}

std::vector<CommandGroup> command_groups() {
  const absl::Span<const Command> all = all_commands();
  return {{"Run a program", all.subspan(0, 4)},
          {"Configure, and check a configuration", all.subspan(4, 4)},
          {"Weights, data, memory and layouts", all.subspan(8, 4)},
          {"TPUs and other devices", all.subspan(12, 2)},
          {"Help in the shell", all.subspan(14)}};
}

absl::Span<const char* const> link_names() { return kLinks; }

std::vector<std::string> expand_arguments(absl::string_view argv0,
                                          absl::Span<const std::string> args) {
  std::vector<std::string> expanded;
  absl::string_view program = argv0.substr(argv0.rfind('/') + 1);
  for (const absl::string_view link : kLinks) {
    if (program != link) continue;
    absl::ConsumePrefix(&program, "accelerate-");
    expanded.emplace_back(program);
  }
  expanded.insert(expanded.end(), args.begin(), args.end());
  // It installs nothing, and has another name now.
  if (!expanded.empty() && expanded[0] == "install_xla") expanded[0] = kInstallXla.name;
  // Anything else that begins with `simulate` is a question about it, or a mistake.
  if (expanded.size() < 2 || expanded[0] != "simulate" || expanded[1].empty()) return expanded;
  if (expanded[1][0] != '-') {
    expanded[0] = "launch";
    expanded.insert(expanded.begin() + 1, "--simulate");
  } else if (names_clusters(expanded)) {
    expanded[0] = "launch";
  }
  return expanded;
}

std::vector<std::string> with_canonical_names(const CLI::App& app, std::vector<std::string> words) {
  for (size_t i = 0; i < words.size() && words[i] != "--"; ++i) {
    std::string& word = words[i];
    if (!absl::StartsWith(word, "--")) continue;
    const size_t equals = std::min(word.find('='), word.size());
    const std::string name =
        absl::StrCat("--", absl::StrReplaceAll(word.substr(2, equals - 2), {{"-", "_"}}));
    const CLI::Option* option = find_option(app, name);
    if (option == nullptr) continue;
    const bool has_value = equals < word.size();
    word = absl::StrCat(name, word.substr(equals));
    // The next word is its value, whatever it looks like.
    if (!has_value && option->get_items_expected_min() > 0) ++i;
  }
  return words;
}

}  // namespace accelerate::launcher::commands
