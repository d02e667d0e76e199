/// The properties of this machine that plans depend on.
///
/// A plain struct that tests fill in. Accelerators are counted by the files that the system shows
/// for them; no driver's library is asked, so a machine whose driver is broken may seem to have
/// devices that a rank cannot use; the agent's checks and ranks tell.
/// Errors: none; what cannot be found out is not there.
/// Threads: any.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace accelerate::launcher::settings {

/// A file of this machine, also one that tells no size, as those of /proc. Absent: it cannot be
/// opened.
std::optional<std::string> read_text(const std::string& path);

/// Whether there is a file or folder; false where the system does not tell.
bool file_exists(const std::string& path);

enum class MpiFlavour {
  kOpenMpi,
  kOther,  ///< Intel MPI, MPICH, MVAPICH: the same options
};

struct MpiProgram {
  std::string name;  ///< "mpirun" or "mpiexec"
  MpiFlavour flavour = MpiFlavour::kOpenMpi;
};

struct Machine {
  /// As Devices::kind.
  std::string device_kind = "cpu";
  /// As Devices::are_amd.
  bool devices_are_amd = false;
  /// The devices that a rank sees, unless it is told otherwise.
  int devices = 0;
  /// With those that a variable hides.
  int installed_devices = 0;
  /// Whether devices can reach one another's memory; without it NCCL has to be told.
  bool has_peer_access = true;

  /// Functions, since the answers take time: plans call them only when needed.
  std::function<int()> count_physical_cores = [] { return 1; };
  /// Starts the program to see what it is.
  std::function<std::optional<MpiProgram>()> find_mpi = [] { return std::nullopt; };
  /// Whether a program on this machine accepts connections at the port.
  std::function<bool(uint16_t)> is_port_in_use = [](uint16_t) { return false; };
  std::function<uint16_t()> find_free_port = [] { return 0; };
  /// The text of a file; nothing if it cannot be read.
  std::function<std::optional<std::string>(const std::string&)> read_file = [](const std::string&) {
    return std::nullopt;
  };
};

/// The machine that this process runs on. `environment` holds `NAME=value` words.
Machine this_machine(absl::Span<const std::string> environment);

/// The flavour that prints this for --version.
MpiFlavour mpi_flavour(absl::string_view version_text);

/// The names in a folder that are the prefix and a number.
std::vector<std::string> numbered_names(const std::string& folder, absl::string_view prefix);

/// Devices of one maker, with or without a variable that hides them.
struct InstalledDevices {
  std::string kind;  ///< as Devices::kind
  std::string name;  ///< "Ascend NPU"
  int count = 0;
};

/// Names of the two that are called "gpu".
inline constexpr char kNvidiaGpu[] = "NVIDIA GPU";
inline constexpr char kAmdGpu[] = "AMD GPU";

/// All devices of the system whose files are below `root`, "/" for this one; ranks take the first.
std::vector<InstalledDevices> installed_devices(const std::string& root);

struct Devices {
  /// "gpu", "npu", "mlu", "sdaa", "musa", "hpu", "neuron", "tpu", "xpu"; "cpu" where there are
  /// none, or none is visible.
  std::string kind = "cpu";
  /// GPUs of AMD's, whose variables ROCm reads.
  bool are_amd = false;
  /// The devices that the kind's variable may choose from: of AMD's, those that
  /// ROCR_VISIBLE_DEVICES leaves.
  int installed = 0;
  /// The devices that the kind's variable leaves.
  int visible = 0;
};

/// The devices that ranks take. `root` is as for `installed_devices`; `environment` holds
/// `NAME=value` words.
Devices find_devices(const std::string& root, absl::Span<const std::string> environment);

/// How many devices a list such as "0,2" shows of `installed` ones. The first that is not there
/// ends it, as it does for CUDA; those that have names instead of numbers are believed.
int count_visible(int installed, absl::string_view ids);

/// The variable that limits which devices of a kind a process sees.
const char* visible_devices_variable(absl::string_view kind, bool are_amd);

// The scheduler's description of the job that the launcher runs in.
//
// Errors:  InvalidArgument naming the variable or the file that makes no sense.
// Mirrors: nothing for Slurm; for SageMaker what its training toolkit sets, as HF Accelerate's
// scripts see it, or else the file that the toolkit reads.

/// The port of a rendezvous where none is agreed on otherwise.
inline constexpr uint16_t kUsualPort = 29500;

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
  /// SageMaker's file that names the hosts, if no variable does.
  std::string hosts_file = {};
};

/// `environment` holds `NAME=value` words. The files of SageMaker's containers are looked for below
/// `root`, "/" for this machine's.
absl::StatusOr<Job> find_job(absl::Span<const std::string> environment,
                             const std::string& root = "/");

}  // namespace accelerate::launcher::settings
