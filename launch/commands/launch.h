/// `accelerate launch [OPTIONS] PROGRAM [ARGS...]`: starts a program once per rank.
///
/// Settings (launch/settings) become a plan (launch/plan), and the plan is carried out, or only
/// shown with --dry-run. The program and its arguments are those of the invocation: CLI11 would
/// take
/// `[1,2]` for a list.
/// Mirrors: accelerate commands/launch.py.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "launch/commands/command.h"
#include "launch/plan/launch_plan.h"
#include "launch/settings/settings.h"

namespace accelerate::launch::commands {

extern const Command kLaunch;

/// What was typed, to settings: with the configuration file that it names, or the default one,
/// which does not count for --cpu. Not complete yet (launch/settings/validate.h).
/// Errors: as Settings::resolve and load_config_file.
absl::StatusOr<settings::Settings> launch_settings(const settings::TypedFlags& typed,
                                                   absl::Span<const std::string> environment);

/// For a file of `NAME=value` lines that other programs write to as well: makes `lines` the only
/// ones of their variables in the file; other lines stay. The file is replaced as a whole or not at
/// all, and only its owner can read it. Errors: Unavailable naming the file.
absl::Status update_variable_file(const std::string& path, const std::vector<std::string>& lines);

}  // namespace accelerate::launch::commands
