/// Help texts and manual pages, both made of what commands declare, so that they agree.
///
/// Threads: the main thread.
#pragma once

#include <string>

#include "launch/commands/commands.h"

namespace CLI {
class App;
}

namespace accelerate::launcher::commands {

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

}  // namespace accelerate::launcher::commands
