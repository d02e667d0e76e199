/// `accelerate`: starts training programs, and merges their checkpoints. See launch/README.md.

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "accelerate/checkpoint/merge_weights.h"
#include "accelerate/runtime/env.h"
#include "accelerate/runtime/file_system.h"
#include "accelerate/runtime/host_files.h"
#include "launch/agent/agent.h"
#include "launch/child_process.h"
#include "launch/options.h"
#include "launch/plan.h"
#include "launch/program.h"

namespace accelerate::launch {
namespace {

constexpr int kExitLauncherFailed = 1;
constexpr int kExitBadCommandLine = 2;
constexpr int kExitNotExecutable = 126;
constexpr int kExitNotFound = 127;

// Where PATH is not set, execvp looks here.
constexpr char kDefaultSearchPath[] = "/bin:/usr/bin";

int fail(int exit_code, const absl::Status& status, const char* command = "launch") {
  std::cerr << "accelerate " << command << ": " << status.message() << "\n";
  return exit_code;
}

// The shell's exit codes for a program that could not be started.
int start_failure_code(const absl::Status& status) {
  if (absl::IsNotFound(status)) return kExitNotFound;
  if (absl::IsPermissionDenied(status)) return kExitNotExecutable;
  return kExitLauncherFailed;
}

// A standard stream that the launcher was started without would be the number of the next file it
// opens, and a rank would print into a socket.
void open_missing_standard_streams() {
  int fd;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) close(fd);
}

// A simulated cluster is one process and needs no supervisor: the program takes this one's place,
// terminal and signals included.
int run_simulated(const std::string& program, const LaunchOptions& options,
                  const std::vector<std::string>& environment) {
  ProcessPlan plan = plan_simulation(options);
  ExecImage image(program, plan.argv, apply_overlay(environment, plan.environment));
  const absl::Status failed = exec_error(image, image.exec());
  return fail(start_failure_code(failed), failed);
}

int run_ranks(const LaunchOptions& options, const std::vector<std::string>& environment) {
  AgentOptions agent = {.command = options.command,
                        .processes_per_node = options.num_processes,
                        .endpoint_port = options.main_process_port,
                        .kill_grace = options.kill_grace};
  // Ranks that share a machine would each take all of its cores and slow one another down.
  if (options.num_processes > 1 && std::getenv(env::kOmpNumThreads) == nullptr) {
    agent.environment[env::kOmpNumThreads] = "1";
  }
  const absl::StatusOr<int> exit_code = run_agent(agent, environment);
  return exit_code.ok() ? *exit_code
                        : fail(start_failure_code(exit_code.status()), exit_code.status());
}

int merge(const MergeOptions& options) {
  if (options.unsafe_serialization) {
    std::cerr << "accelerate merge-weights: --unsafe_serialization has no effect: safetensors are "
                 "written, never pickle\n";
  }
  HostFiles files;
  const absl::StatusOr<MergedWeights> merged =
      merge_weights(files, options.checkpoint_dir, options.output_path,
                    {.remove_checkpoint_dir = options.remove_checkpoint_dir});
  if (!merged.ok()) return fail(kExitLauncherFailed, merged.status(), "merge-weights");
  std::cout << merged->tensors << " tensors, " << merged->bytes
            << " bytes: " << join_path(options.output_path, merged->files[0]) << std::endl;
  return std::cout ? 0 : kExitLauncherFailed;
}

int main_with(const std::vector<std::string>& args, const std::vector<std::string>& environment) {
  open_missing_standard_streams();
  absl::StatusOr<CommandLine> command_line = parse_command_line(args);
  if (!command_line.ok()) {
    const bool merges = !args.empty() && args[0] == "merge-weights";
    return fail(kExitBadCommandLine, command_line.status(), merges ? "merge-weights" : "launch");
  }
  if (const auto* asked = std::get_if<InformationalText>(&*command_line)) {
    std::cout << asked->text << std::flush;
    return std::cout ? 0 : kExitLauncherFailed;
  }
  if (const auto* asked = std::get_if<MergeOptions>(&*command_line)) return merge(*asked);
  const auto& options = std::get<LaunchOptions>(*command_line);
  if (!options.simulate) return run_ranks(options, environment);
  const char* search_path = std::getenv("PATH");
  absl::StatusOr<std::string> program =
      find_program(options.command[0], search_path != nullptr ? search_path : kDefaultSearchPath);
  if (!program.ok()) return fail(start_failure_code(program.status()), program.status());
  return run_simulated(*program, options, environment);
}

}  // namespace
}  // namespace accelerate::launch

int main(int argc, char** argv) {
  std::vector<std::string> environment;
  for (char** word = environ; *word != nullptr; ++word) environment.emplace_back(*word);
  return accelerate::launch::main_with(std::vector<std::string>(argv + 1, argv + argc),
                                       environment);
}
