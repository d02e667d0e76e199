#include "launch/commands/commands.h"

namespace accelerate::launch::commands {

int fail(Invocation& invocation, absl::string_view command, const absl::Status& status,
         int exit_code) {
  invocation.err << "accelerate " << command << ": " << status.message() << std::endl;
  return exit_code;
}

int finish(Invocation& invocation) {
  invocation.out.flush();
  return invocation.out ? 0 : kExitLauncherFailed;
}

absl::Span<const Command> all_commands() {
  static const Command kCommands[] = {kConfig,    kLaunch,         kSimulate,     kTest,
                                      kEnv,       kEstimateMemory, kMergeWeights, kToFsdp2,
                                      kTpuConfig, kInstallXla,     kCompletion};
  return kCommands;
}

}  // namespace accelerate::launch::commands
