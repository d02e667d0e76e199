/// The variables that Slurm sets for the processes it starts, and its abbreviated lists.
///
/// Errors:  InvalidArgument naming the variable or the text.
/// Mirrors: nothing; Hugging Face Accelerate does not read Slurm's variables.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "accelerate/platform/environment.h"

namespace accelerate {

/// The hosts of a list such as "n[03-05,9],m1": n03, n04, n05, n9, m1.
absl::StatusOr<std::vector<std::string>> expand_slurm_hosts(absl::string_view list);

/// The tasks of each node of a list such as "4(x2),3": 4, 4, 3.
absl::StatusOr<std::vector<int>> expand_slurm_counts(absl::string_view list);

/// How a process relates to Slurm.
enum class SlurmRole {
  kNone,   ///< no job
  kShell,  ///< a job's batch script or interactive shell, of which there is one however many tasks
           ///< the job asks for
  kTask,   ///< one of the tasks that srun started
};

/// The script of a job sees SLURM_PROCID=0 and SLURM_NTASKS=n like the first of n tasks; what tells
/// them apart is the number of their step.
SlurmRole slurm_role(const Environment& environment);

/// The first host of this step, where its task 0 runs; nothing where Slurm names none.
absl::StatusOr<std::optional<std::string>> slurm_first_host(const Environment& environment);

/// A port from 20000 to 29999 that follows from the numbers of the job and of its step, so that all
/// tasks choose the same one and jobs that share a node hardly ever do; nothing outside of a job.
std::optional<int> slurm_port(const Environment& environment);

}  // namespace accelerate
