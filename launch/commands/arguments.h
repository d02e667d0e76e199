/// What a command line stands for: short forms become the commands that they mean.
///
/// Threads: pure functions.
/// Mirrors: HF Accelerate's programs accelerate-launch, accelerate-config,
/// accelerate-estimate-memory and accelerate-merge-weights, which are links to the one program
/// here.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace CLI {
class App;
}

namespace accelerate::launch::commands {

/// Names that an installation links to `accelerate`: each is "accelerate-" and a command.
absl::Span<const char* const> link_names();

/// `args` (which do not include `argv0`) as if `accelerate` itself had been called: the command
/// that a link stands for comes first, and `simulate SPEC WORDS` is `launch --simulate SPEC WORDS`.
std::vector<std::string> expand_arguments(absl::string_view argv0,
                                          absl::Span<const std::string> args);

/// The words with `_` for `-` in the names of the options of `app` and its subcommands, up to a
/// `--`. Values stay as they are, also those that look like options.
std::vector<std::string> with_canonical_names(const CLI::App& app, std::vector<std::string> words);

}  // namespace accelerate::launch::commands
