/// The commands of `accelerate`, each in the file of its name.
///
/// A command declares its options on a CLI11 application and returns the function to run after
/// parsing. The program's main, the help texts and the shell completion all use the list here.
/// Nothing here may depend on LibTorch: the program has to start at once.
/// Threads: the main thread.
#pragma once

#include <functional>
#include <istream>
#include <memory>
#include <ostream>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "launch/settings/config_file.h"
#include "launch/settings/machine.h"
#include "launch/settings/settings.h"

namespace CLI {
class App;
}

namespace accelerate::launcher::commands {

/// The launcher's exit codes of its own; a program's are passed on as they are.
inline constexpr int kExitLauncherFailed = 1;
inline constexpr int kExitBadCommandLine = 2;
inline constexpr int kExitNotExecutable = 126;
inline constexpr int kExitNotFound = 127;

/// The surroundings of a command. Tests give it streams and an environment of their own.
struct Invocation {
  std::istream& in;
  std::ostream& out;
  std::ostream& err;
  /// `NAME=value` words, as `environ` has them.
  std::vector<std::string> environment;
  /// Whether `in` and `out` are a terminal that a person sits at.
  bool is_interactive = false;
  /// The program to launch and its arguments, as they were typed: no parser has seen them.
  std::vector<std::string> program = {};
  /// The file of `accelerate`, which commands start again, and look for programs near.
  std::string executable = {};
  /// Whether errors on `err` may have escape codes for colours.
  bool err_has_colour = false;
  /// The first word of the command line: `simulate` is a command that `launch` carries out.
  std::string called = {};
};

/// The command's name in messages: the one that was called.
std::string called_name(const Invocation& invocation, absl::string_view command);

/// Writes `accelerate COMMAND: message`, or without a command `accelerate: message`, and returns
/// the exit code.
int fail(Invocation& invocation, absl::string_view command, absl::string_view why,
         int exit_code = kExitLauncherFailed);
inline int fail(Invocation& invocation, absl::string_view command, const absl::Status& status,
                int exit_code = kExitLauncherFailed) {
  return fail(invocation, command, status.message(), exit_code);
}
/// The same for a command line that cannot be followed; returns kExitBadCommandLine.
inline int refuse(Invocation& invocation, absl::string_view command, absl::string_view why) {
  return fail(invocation, command, why, kExitBadCommandLine);
}

/// Fails with kExitBadCommandLine for InvalidArgument, with kExitLauncherFailed for other errors.
inline int fail_or_refuse(Invocation& invocation, absl::string_view command,
                          const absl::Status& status) {
  return fail(invocation, command, status,
              absl::IsInvalidArgument(status) ? kExitBadCommandLine : kExitLauncherFailed);
}

/// The file of a program by its name or path, with the PATH of the invocation. Errors: NotFound,
/// PermissionDenied.
absl::StatusOr<std::string> find_program(const Invocation& invocation, const std::string& program);

/// The shell's exit codes for a program that could not be started.
int start_failure_code(const absl::Status& status);
inline int fail_to_start(Invocation& invocation, absl::string_view command,
                         const absl::Status& status) {
  return fail(invocation, command, status, start_failure_code(status));
}

/// The file of a program that comes with `accelerate` (companion_path in probe.h), called `what` in
/// errors. Errors: NotFound; FailedPrecondition for a LibTorch that does not fit.
absl::StatusOr<std::string> find_companion(const Invocation& invocation, absl::string_view what,
                                           absl::string_view name);

/// Starts such a program and returns its exit code; 127 where it is not installed.
int run_companion(Invocation& invocation, absl::string_view command, absl::string_view name,
                  std::vector<std::string> arguments);

/// Flushes standard output; where it was closed or cannot be written, says so and returns a
/// failure.
int finish(Invocation& invocation);

/// Runs a parsed command; returns the exit code. Errors are one line on `err`,
/// `accelerate NAME: what is wrong`.
using RunCommand = std::function<int(Invocation&)>;

/// The struct of a command's options, by its type alone: there is no definition.
template <typename Options>
Options options_of(void (*declare)(CLI::App&, Options&));

/// Command::declare for a command that has its options in a struct: `declare` puts them on the
/// application, and `run` gets the struct, the words that no option took if it wants them, and the
/// invocation. `App` is CLI::App, which is complete where commands are declared.
template <auto declare, auto run, typename App>
RunCommand with_options(App& app) {
  auto options = std::make_shared<decltype(options_of(declare))>();
  declare(app, *options);
  // The application lives as long as its command.
  return [options, &app](Invocation& invocation) {
    using Options = decltype(options_of(declare));
    if constexpr (std::is_invocable_v<decltype(run), const Options&,
                                      const std::vector<std::string>&, Invocation&>) {
      return run(*options, app.remaining(), invocation);
    } else {
      static_cast<void>(app);
      return run(*options, invocation);
    }
  };
}

/// An option or a positional argument with a value, which the help calls `type`: "PATH".
template <typename App, typename Value>
auto* add_value(App& app, const char* name, Value& value, const char* type,
                const std::string& help) {
  return app.add_option(name, value, help)->type_name(type);
}

/// One command.
struct Command {
  const char* name;     ///< as typed: "estimate-memory"
  const char* summary;  ///< one line for `accelerate --help`
  /// Declares options on `app`, which is the command's own, and returns what to run after they were
  /// parsed; the options' values live as long as the returned function.
  RunCommand (*declare)(CLI::App& app);
};

extern const Command kConfig, kLaunch, kSimulate, kPerf, kTest, kEnv, kEstimateMemory, kPlan,
    kMergeWeights, kPreprocess, kToFsdp2, kTpuConfig, kInstallXla, kCompile, kCompletion, kMan;

/// In the order of `accelerate --help`.
absl::Span<const Command> all_commands();

/// The same under the headings of `accelerate --help`.
struct CommandGroup {
  const char* title;
  absl::Span<const Command> commands;
};
std::vector<CommandGroup> command_groups();

// ---- launch

/// The typed flags as settings, with the configuration file that they name, or the default one,
/// which does not count for --cpu. Not complete yet (launch/settings/validate.h). Errors: as
/// Settings::resolve and load_config_file.
absl::StatusOr<settings::Settings> launch_settings(const settings::TypedFlags& typed,
                                                   absl::Span<const std::string> environment);

/// The ranks of a simulated cluster that can be run. Errors: the simulator's InvalidArgument, with
/// a line that points at the character.
absl::StatusOr<int> ranks_of_cluster(const std::string& text);

/// Whether what the program is to run on fits: SPEC of --simulate, as the simulator reads it, and
/// the sizes of a mesh. \pre The settings are complete. Errors: InvalidArgument; of SPEC with a
/// line that points at the character.
absl::Status check_ranks(const settings::Settings& settings, const settings::Job& job);

/// For a file of `NAME=value` lines that other programs write to as well: makes `lines` the only
/// ones of their variables in the file; other lines stay. The file is replaced as a whole or not at
/// all, and only its owner can read it. Errors: Unavailable naming the file.
absl::Status update_variable_file(const std::string& path, const std::vector<std::string>& lines);

// ---- env

/// What `accelerate --version` prints: the versions of this program, of LibTorch, and the backends.
std::string version_text(const Invocation& invocation);

/// The command `bench` below `perf`: two builds of a Google Benchmark program, measured in turn.
extern const Command kPerfBench;

// ---- to-fsdp2

/// What a conversion tells the user.
struct Notice {
  bool is_warning = false;
  std::string text;
};

/// Changes `config`. Returns whether something was changed.
bool convert_to_fsdp2(settings::ConfigFile& config, std::vector<Notice>& notices);

struct ToFsdp2Options {
  std::string config_file;
  /// Empty: the same file, with `overwrite`.
  std::string output_file = {};
  bool overwrite = false;
};

/// The whole command. Returns the file that was written.
absl::StatusOr<std::string> to_fsdp2(const ToFsdp2Options& options, std::vector<Notice>& notices);

// ---- help: texts and manual pages, both made of what commands declare, so that they agree.

/// The width to wrap help at: that of the terminal on standard output, or COLUMNS, from 60 to 100;
/// elsewhere 100.
int help_columns();

/// The help of a command after its options were declared, or of that subcommand of it which was
/// parsed.
std::string help_text(const CLI::App& app, int columns);

/// The help of `accelerate` itself: its commands in their groups.
std::string overview_text(int columns);

/// A page for man(1), "accelerate-launch.1", with all options of the command. The empty name is
/// `accelerate` itself.
struct ManualPage {
  std::string file;
  std::string text;
};

/// The pages of `accelerate` and of all commands.
std::vector<ManualPage> manual_pages();

// ---- completion

/// Errors: InvalidArgument for an unknown shell.
absl::StatusOr<std::string> completion_script(absl::string_view shell,
                                              absl::Span<const Command> commands);

// ---- What a command line stands for: short forms become the commands that they mean.

/// Names that an installation links to `accelerate`: each is "accelerate-" and a command.
/// Mirrors: HF Accelerate's programs of these names, which are links to the one program here.
absl::Span<const char* const> link_names();

/// `args` (which do not include `argv0`) as if `accelerate` itself had been called: the command
/// that a link stands for comes first, `simulate SPEC WORDS` is `launch --simulate SPEC WORDS`, and
/// `simulate --sweep CLUSTERS WORDS` and `simulate --fit CLUSTER WORDS` are `launch` with these
/// flags.
std::vector<std::string> expand_arguments(absl::string_view argv0,
                                          absl::Span<const std::string> args);

/// The words with `_` for `-` in the names of the options of `app` and its subcommands, up to a
/// `--`. Values stay as they are, also those that look like options.
std::vector<std::string> with_canonical_names(const CLI::App& app, std::vector<std::string> words);

}  // namespace accelerate::launcher::commands
