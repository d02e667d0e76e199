/// `accelerate launch [OPTIONS] PROGRAM [ARGS...]`: starts a program once per rank.
///
/// Settings (launch/settings) become a plan (launch/plan), and the plan is carried out, or only
/// shown with --dry-run.
/// Mirrors: accelerate commands/launch.py.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "launch/commands/command.h"
#include "launch/plan/launch_plan.h"
#include "launch/settings/settings.h"

namespace accelerate::launch {

extern const Command kLaunch;

/// Words of a command line of launch, without "launch" itself, as CLI11 has to get them: options
/// first and canonical, then `--` and the program's words.
/// Errors: InvalidArgument naming the option.
absl::StatusOr<std::vector<std::string>> prepare_launch_words(const CLI::App& app,
                                                              absl::Span<const std::string> args);

/// What was typed, to settings: with the configuration file that it names, or the default one,
/// which does not count for --cpu. Not complete yet (launch/settings/validate.h).
/// Errors: as Settings::resolve and load_config_file.
absl::StatusOr<Settings> launch_settings(const TypedFlags& typed,
                                         absl::Span<const std::string> environment);

}  // namespace accelerate::launch
