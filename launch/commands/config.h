/// `accelerate config`: asks how to train and writes the configuration that launch reads.
///
///     accelerate config [--config_file PATH] [--set KEY=VALUE]...
///     accelerate config default [--config_file PATH] [--mixed_precision P]
///     accelerate config update [--config_file PATH] [--set KEY=VALUE]...
/// With --set nothing is asked: the configuration is this machine's default with these values, or
/// with `update` the one that is there. A result that launch would refuse is not written.
/// Mirrors: accelerate commands/config.
#pragma once

#include "launch/commands/command.h"

namespace accelerate::launch::commands {

extern const Command kConfig;

}  // namespace accelerate::launch::commands
