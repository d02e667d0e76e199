#include "launch/commands/run_local.h"

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "launch/commands/invocation.h"
#include "launch/listening_socket.h"
#include "launch/plan.h"
#include "launch/supervisor.h"

namespace accelerate::launch {
namespace {

// The shell's exit codes for a program that could not be started.
int start_failure_code(const absl::Status& status) {
  if (absl::IsNotFound(status)) return kExitNotFound;
  if (absl::IsPermissionDenied(status)) return kExitNotExecutable;
  return kExitLauncherFailed;
}

}  // namespace

int run_local(Invocation& invocation, const AgentOptions& options, const std::string& program) {
  if (options.rendezvous != RendezvousKind::kStandalone) {
    return fail(invocation, "launch",
                absl::UnimplementedError("several machines are not built in yet"));
  }
  absl::StatusOr<ListeningSocket> socket = listen_on_loopback(options.endpoint_port);
  if (!socket.ok()) return fail(invocation, "launch", socket.status());
  const std::vector<ProcessPlan> plans =
      plan_ranks({.num_processes = options.processes_per_node,
                  .command = options.command,
                  .environment = options.environment},
                 invocation.environment, {.port = socket->port, .listen_fd = socket->fd.get()});
  SupervisorOptions supervision;
  if (options.kill_grace) {
    supervision = {.signal_grace = *options.kill_grace, .failure_grace = *options.kill_grace};
  }
  absl::StatusOr<std::unique_ptr<Supervisor>> supervisor =
      Supervisor::start(program, plans, invocation.environment, supervision);
  if (!supervisor.ok()) {
    return fail(invocation, "launch", supervisor.status(), start_failure_code(supervisor.status()));
  }
  // From here on the port is rank 0's alone, and free again when rank 0 is gone.
  socket->fd.reset();
  return (*supervisor)->run();
}

}  // namespace accelerate::launch
