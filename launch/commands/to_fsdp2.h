/// `accelerate to-fsdp2`: a configuration for FSDP 1 as one for FSDP 2.
///
/// Mirrors: accelerate commands/to_fsdp2.py.
/// Differs: the file is checked as launch checks it; unknown keys are an error.
#pragma once

#include "launch/commands/command.h"
#include "launch/settings/config_file.h"

namespace accelerate::launch::commands {

/// Changes `config` and appends warnings, a line each. Returns whether something was changed.
bool convert_to_fsdp2(settings::ConfigFile& config, std::string& warnings);

extern const Command kToFsdp2;

}  // namespace accelerate::launch::commands
