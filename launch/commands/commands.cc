#include "launch/commands/commands.h"

#include "launch/commands/env.h"
#include "launch/commands/estimate_memory.h"
#include "launch/commands/install_xla.h"
#include "launch/commands/launch.h"
#include "launch/commands/merge_weights.h"
#include "launch/commands/simulate.h"
#include "launch/commands/to_fsdp2.h"
#include "launch/commands/tpu_config.h"

namespace accelerate::launch {

absl::Span<const Command> commands() {
  static const Command kCommands[] = {kLaunch,       kSimulate, kEnv,       kEstimateMemory,
                                      kMergeWeights, kToFsdp2,  kTpuConfig, kInstallXla};
  return kCommands;
}

}  // namespace accelerate::launch
