/// Runs a command in a test: its words and what is typed go in, its output comes out.
///
/// Threads: the test's own.
#pragma once

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "launch/commands/commands.h"

namespace accelerate::launcher::commands {

struct CommandResult {
  int exit_code = 0;
  std::string out;
  std::string err;
};

struct CommandInput {
  std::string typed;
  std::vector<std::string> environment;
  bool is_interactive = false;
  /// The program that stands for `accelerate`.
  std::string executable = {};
  /// The program to launch and its arguments.
  std::vector<std::string> program = {};
};

/// Words that CLI11 refuses end with exit code 2 and its message, as in the program.
inline CommandResult run_command(const Command& command, std::vector<std::string> words,
                                 CommandInput input = {}) {
  CLI::App app(command.summary, command.name);
  const RunCommand run = command.declare(app);
  std::reverse(words.begin(), words.end());
  try {
    app.parse(std::move(words));
  } catch (const CLI::CallForHelp&) {
    return {.exit_code = 0, .out = app.help(), .err = ""};
  } catch (const CLI::ParseError& error) {
    return {.exit_code = kExitBadCommandLine, .out = "", .err = error.what()};
  }
  std::istringstream in(input.typed);
  std::ostringstream out;
  std::ostringstream err;
  Invocation invocation{in, out, err, input.environment, input.is_interactive};
  invocation.executable = input.executable;
  invocation.program = input.program;
  const int exit_code = run(invocation);
  return {.exit_code = exit_code, .out = out.str(), .err = err.str()};
}

}  // namespace accelerate::launcher::commands
