/// The commands of `accelerate`, each in a file of its own.
///
/// A command declares its options on a CLI11 application and returns the function to run after
/// parsing. The program's main, the help texts and the shell completion all use the list in
/// `commands.h`. Nothing here may depend on LibTorch: the program has to start at once. Threads:
/// the main thread.
#pragma once

#include <functional>
#include <istream>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace CLI {
class App;
}

namespace accelerate::launch::commands {

/// The launcher's exit codes of its own; a program's are passed on as they are.
inline constexpr int kExitLauncherFailed = 1;
inline constexpr int kExitBadCommandLine = 2;
inline constexpr int kExitNotExecutable = 126;
inline constexpr int kExitNotFound = 127;

/// What a command runs in. Tests give it streams and an environment of their own.
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
};

/// Writes `accelerate COMMAND: message`, and returns the exit code.
int fail(Invocation& invocation, absl::string_view command, const absl::Status& status,
         int exit_code = kExitLauncherFailed);

/// Flushes standard output; returns a failure if the output was closed.
int finish(Invocation& invocation);

/// Runs a parsed command; returns the exit code. Errors are one line on `err`,
/// `accelerate NAME: what is wrong`.
using RunCommand = std::function<int(Invocation&)>;

/// One command.
struct Command {
  const char* name;     ///< as typed: "estimate-memory"
  const char* summary;  ///< one line for `accelerate --help`
  /// Declares options on `app`, which is the command's own, and returns what to run after they were
  /// parsed; the options' values live as long as the returned function.
  RunCommand (*declare)(CLI::App& app);
};

}  // namespace accelerate::launch::commands
