/// `accelerate`: starts training programs, and what goes with that. See launch/README.md.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "accelerate/base/message_text.h"
#include "launch/commands/commands.h"
#include "launch/commands/probe.h"
#include "launch/process/terminal_colour.h"
#include "launch/settings/settings.h"

namespace accelerate::launcher {

using commands::Command;
using commands::finish;
using commands::Invocation;
using commands::refuse;
namespace {

// A standard stream that the launcher was started without would be the number of the next file it
// opens, and a rank would print into a socket.
void open_missing_standard_streams() {
  int fd;
  do {
    fd = open("/dev/null", O_RDWR);
    // What a command prints is lost.
    if (fd == STDOUT_FILENO) std::cout.setstate(std::ios::badbit);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) close(fd);
}

// CLI11's messages may have several lines.
std::string one_line(absl::string_view text) { return absl::StrReplaceAll(text, {{"\n", " "}}); }

int run_command(const Command& command, std::vector<std::string> words, Invocation& invocation) {
  CLI::App app(command.summary, absl::StrCat("accelerate ", command.name));
  const commands::RunCommand run = command.declare(app);
  if (command.name == absl::string_view(commands::kLaunch.name)) {
    absl::StatusOr<settings::LaunchWords> split = settings::split_launch_words(app, words);
    if (!split.ok()) {
      return refuse(invocation, command.name, one_line(split.status().message()));
    }
    words = std::move(split->options);
    invocation.program = std::move(split->program);
    if (split->help_group) settings::show_flags(app, split->help_group);
  } else {
    words = commands::with_canonical_names(app, std::move(words));
  }
  try {
    // CLI11 takes its words from the back.
    std::reverse(words.begin(), words.end());
    app.parse(std::move(words));
  } catch (const CLI::CallForHelp&) {
    invocation.out << commands::help_text(app, commands::help_columns());
    return finish(invocation);
  } catch (const CLI::CallForAllHelp&) {
    settings::show_flags(app);
    invocation.out << commands::help_text(app, commands::help_columns());
    return finish(invocation);
  } catch (const CLI::ParseError& error) {
    return refuse(invocation, command.name, one_line(error.what()));
  }
  return run(invocation);
}

int run(const std::vector<std::string>& args, Invocation& invocation) {
  if (args.empty()) {
    invocation.out << commands::overview_text(commands::help_columns());
    // As HF Accelerate ends: nothing was done.
    return std::max(finish(invocation), commands::kExitLauncherFailed);
  }
  if (args[0] == "--version") {
    invocation.out << commands::version_text(invocation);
    return finish(invocation);
  }
  if (args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
    invocation.out << commands::overview_text(commands::help_columns());
    return finish(invocation);
  }
  std::vector<std::string> names;
  for (const Command& command : commands::all_commands()) {
    if (args[0] == command.name) {
      return run_command(command, std::vector<std::string>(args.begin() + 1, args.end()),
                         invocation);
    }
    names.push_back(command.name);
  }
  const bool is_option = absl::StartsWith(args[0], "-");
  const std::string word = args[0].substr(std::min(args[0].find_first_not_of('-'), args[0].size()));
  std::string near = did_you_mean(word, std::vector<std::string>{"help", "version"}, "--");
  if (!is_option && near.empty()) near = did_you_mean(word, names);
  return refuse(invocation, "",
                one_line(absl::StrCat("unknown ", is_option ? "option " : "command ", args[0], near,
                                      "; see accelerate --help")));
}

}  // namespace
}  // namespace accelerate::launcher

int main(int argc, char** argv) {
  using accelerate::launcher::commands::Invocation;
  accelerate::launcher::open_missing_standard_streams();
  Invocation invocation{std::cin, std::cout, std::cerr, {}, false};
  for (char** word = environ; *word != nullptr; ++word) invocation.environment.emplace_back(*word);
  invocation.executable = accelerate::launcher::commands::executable_path();
  invocation.is_interactive = isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
  invocation.err_has_colour = accelerate::launcher::process::shows_colour(STDERR_FILENO);
  const std::vector<std::string> args(argv + std::min(argc, 1), argv + argc);
  if (!args.empty()) invocation.called = args[0];
  return accelerate::launcher::run(
      accelerate::launcher::commands::expand_arguments(argc > 0 ? argv[0] : "accelerate", args),
      invocation);
}
