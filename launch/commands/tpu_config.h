/// `accelerate tpu-config`: runs commands on every worker of a TPU pod, through gcloud.
///
/// Mirrors: accelerate commands/tpu.py.
/// Differs: how accelerate is installed there can be said; a pod without name or zone is an error.
#pragma once

#include "launch/commands/command.h"

namespace accelerate::launch::commands {

extern const Command kTpuConfig;

}  // namespace accelerate::launch::commands
