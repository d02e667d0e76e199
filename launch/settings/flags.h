/// The schema's flags on a command line.
///
/// Options end at the first word that is neither an option nor its value: that word is the program,
/// and everything after it is the program's, including `--help` and `--`. A `--` before the program
/// is skipped. Names may be spelt with `_` or `-`; of a repeated flag the last value counts, unless
/// it takes several.
/// Errors:  InvalidArgument, one line that names the flag.
/// Threads: the main thread.
/// Mirrors: accelerate commands/launch.py, CustomArgumentParser.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "launch/settings/settings.h"

namespace CLI {
class App;
}

namespace accelerate::launch::settings {

struct LaunchWords {
  /// One word a flag: "--name" or "--name=value", names as in the schema.
  std::vector<std::string> options;
  std::vector<std::string> program;
};

/// Separates options from the program. Flags of `app` itself (--help) are options too.
absl::StatusOr<LaunchWords> split_launch_words(const CLI::App& app,
                                               absl::Span<const std::string> args);

/// Makes a flag of every row that has one, under its group's heading. What is parsed goes to
/// `typed`, which lives as long as the application.
void declare_flags(CLI::App& app, TypedFlags& typed);

/// "--name" or "--name=value" for all that was typed, in the order of the schema.
std::vector<std::string> typed_words(const TypedFlags& typed);

/// The table of accelerate/docs/launch_options.md.
std::string options_markdown();

}  // namespace accelerate::launch::settings
