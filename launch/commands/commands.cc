#include "launch/commands/commands.h"

#include "launch/commands/completion.h"
#include "launch/commands/config.h"
#include "launch/commands/env.h"
#include "launch/commands/estimate_memory.h"
#include "launch/commands/install_xla.h"
#include "launch/commands/launch.h"
#include "launch/commands/merge_weights.h"
#include "launch/commands/simulate.h"
#include "launch/commands/test.h"
#include "launch/commands/to_fsdp2.h"
#include "launch/commands/tpu_config.h"

namespace accelerate::launch::commands {

absl::Span<const Command> all_commands() {
  static const Command kCommands[] = {kConfig,    kLaunch,         kSimulate,     kTest,
                                      kEnv,       kEstimateMemory, kMergeWeights, kToFsdp2,
                                      kTpuConfig, kInstallXla,     kCompletion};
  return kCommands;
}

}  // namespace accelerate::launch::commands
