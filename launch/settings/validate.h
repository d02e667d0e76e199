/// Completes settings and refuses combinations that do not fit together.
///
/// Errors:  InvalidArgument, one line: which settings, why not, and what to do.
/// Threads: pure functions.
/// Mirrors: accelerate commands/launch.py, _validate_launch_command.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "accelerate/base/rank_layout.h"
#include "launch/process/process_plan.h"
#include "launch/settings/machine.h"
#include "launch/settings/settings.h"

namespace accelerate::launcher::settings {

/// How many machines take part: the same number twice unless they may come and go.
struct NodeRange {
  int min = 1;
  int max = 1;
};

/// The range from --nnodes, else from --num_machines. \pre The settings are complete.
NodeRange node_range(const Settings& settings);

/// The seeds from `first` to the one before `end`.
struct SeedRange {
  uint64_t first = 0;
  uint64_t end = 0;
};

/// "0:50". Errors: InvalidArgument for other text and for an empty range.
absl::StatusOr<SeedRange> parse_seeds(absl::string_view text);

/// Whether machines may come and go.
bool is_elastic(const Settings& settings);

/// Fills in what follows from the machine and the job: ranks, machines and their rendezvous
/// address. Then checks everything that does not depend on what is started.
absl::Status complete(Settings& settings, const Machine& machine, const Job& job);

/// Refuses what this version does not have (Setting::status), before anything else is asked of the
/// settings: each such setting that a flag, the file or a variable gives another value than its
/// default; what a file says of TPUs, in a run on TPUs alone. The plans (launch/plan) do not ask:
/// they show what HF Accelerate would be given. Errors: Unimplemented, one line with the flag, the
/// file's line or the variable.
absl::Status check_status(const Settings& settings);

/// The sizes of the mesh and the plug-ins that the settings ask for.
RankLayout layout_of(const Settings& settings);

/// Whether the sizes of a mesh multiply to the number of ranks, which is the cluster's in a
/// simulation, and whether a job may have their layout. The plans do not ask: they show what HF
/// Accelerate would be given. Errors: InvalidArgument with the flags, both numbers and a proposal;
/// for a layout why not, and the nearest one.
absl::Status check_mesh_size(const Settings& settings, int64_t ranks);

/// The defaults that a run depends on, "num_processes=2", as one note; empty if there is a
/// configuration file or flags set them all.
std::string note_on_defaults(const Settings& settings);

/// How ranks are arranged, as a line of a plan that is shown: "mesh: dp_shard 4 x tp 2, ep 2", with
/// a newline; empty where all ranks are replicas, and for a job of SageMaker, which is shown as it
/// is.
std::string mesh_text(const Settings& settings);

/// The schedule along the time (accelerate/pipeline/schedule_text.h), where a backward pass takes
/// twice the time of a forward pass and messages take none, with the share of the time in which
/// ranks wait, and what each keeps for backward passes. Ends with a newline; empty where ranks have
/// no stages. \pre Each setting is in its range. Errors: for stages that no schedule has.
absl::StatusOr<std::string> pipeline_text(const Settings& settings);

/// Which sizes of a mesh were typed and have no effect, because --use_parallelism_config is
/// missing, as one note; empty for none.
std::string note_on_mesh(const Settings& settings);

/// That --semantics was typed and has no effect, because no time-out is waited for; else empty.
std::string note_on_semantics(const Settings& settings);

// The variables that pass settings on to ranks. Those for ranks and addresses are set by the
// program that starts a rank (the agent, mpirun, srun). Mirrors: accelerate utils/launch.py, the
// prepare functions.

/// \pre `complete` succeeded. `environment` holds `NAME=value` words of the launcher. Requests for
/// a simulation that an outer run made are removed.
process::EnvironmentOverlay child_environment(const Settings& settings, const Machine& machine,
                                              absl::Span<const std::string> environment);

}  // namespace accelerate::launcher::settings
