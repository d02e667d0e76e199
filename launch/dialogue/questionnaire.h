/// The questions of `accelerate config`, and the configuration that the answers make.
///
/// Threads: one.
/// Mirrors: accelerate commands/config/cluster.py and sagemaker.py; the order and the defaults.
/// Differs: a simulated cluster is a machine type; every answer gets to the key that launch reads;
///          access keys are not asked for.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "launch/dialogue/prompter.h"
#include "launch/settings/config_file.h"

namespace accelerate::launch::dialogue {

/// `home` is what `~` stands for in paths. Errors: the prompter's, for which nothing must be
/// written.
absl::StatusOr<settings::ConfigFile> ask_configuration(Prompter& prompter, const std::string& home);

}  // namespace accelerate::launch::dialogue
