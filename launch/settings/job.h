/// The scheduler's description of the job that the launcher runs in.
///
/// Errors:  InvalidArgument naming the variable that makes no sense.
/// Threads: pure functions.
/// Mirrors: nothing for Slurm; for SageMaker what its containers set, as HF Accelerate's scripts
/// see it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace accelerate::launch::settings {

enum class JobKind {
  kNone,
  kSlurmShell,  ///< the batch script or the shell of a Slurm job: ranks are started with srun
  kSlurmTask,   ///< a task that srun started
  kSageMaker,   ///< one machine of a SageMaker job
};

struct Job {
  JobKind kind = JobKind::kNone;
  int nodes = 1;
  /// The tasks over all nodes; 0 if the job does not define them.
  int tasks = 0;
  int devices_per_node = 0;
  /// The node rank of this process; 0 in a shell.
  int node_rank = 0;
  std::string first_host;
  /// One that all of the job agree on.
  uint16_t port = 0;
};

/// `environment` holds `NAME=value` words.
absl::StatusOr<Job> find_job(absl::Span<const std::string> environment);

}  // namespace accelerate::launch::settings
