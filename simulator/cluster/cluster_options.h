/// What a simulated cluster's runs are like, besides the cluster itself.
///
/// Threads: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/mesh/mesh.h"
#include "accelerate/runtime/runtime.h"
#include "simulator/c10d/fold_plan.h"
#include "simulator/c10d/semantics.h"
#include "simulator/core/run_log.h"
#include "simulator/device/shapes.h"
#include "simulator/device/sim_device.h"
#include "simulator/disk/file_faults.h"
#include "simulator/disk/sim_disk.h"
#include "simulator/faults/rules.h"
#include "simulator/report/report.h"

namespace accelerate::simulator {

struct ClusterOptions {
  uint64_t seed = 0;
  /// kShapes: large tensors of devices have no values, so that models fit that are larger than this
  /// machine, and the machine's files do not change: see files_in_memory(). Needs a device in the
  /// specification. See simulator/device/shapes.h.
  Numerics numerics = Numerics::kReal;
  /// Needs Numerics::kShapes: ranks that do the same compute the same shapes, but not the same
  /// values. See simulator/c10d/fold_plan.h.
  std::optional<Folding> fold = std::nullopt;
  /// The environment that ranks see, before the topology's variables are set in it.
  Environment environment = {};
  /// The program that runs, for the report.
  std::string program = {};
  /// The command that repeats this run, for error messages. Empty: the test's own, if in a test.
  std::string repeat_command = {};
  /// Records the run: see Cluster::trace(). Costs memory and a little time.
  bool record = false;
  /// Records each run, and writes trace.json, report.html and summary.json into this folder.
  std::string report_directory = {};
  /// The most slices in trace.json: a longer run is shown there with less detail.
  size_t max_trace_slices = kMaxTraceSlices;
  /// What time-outs cost, and what ranks notice of those that have ended. See semantics.h.
  TimeOuts time_outs = TimeOuts::kDiagnose;
  Semantics semantics = Semantics::kAny;
  /// Fails programs that use a collective's tensors before they have waited for it.
  bool detect_races = true;
  /// Fails programs whose ranks end while their devices hold memory.
  bool detect_leaks = true;
  /// Fails programs whose replicas of a model differ when they are about to synchronise.
  bool detect_drift = true;
  /// Under kShapes: what the host gets for values that were not computed. Null: reading them is an
  /// error.
  UnknownValue unknown_value = nullptr;
  /// Under kShapes: tensors of more bytes have no values.
  size_t largest_real_tensor = size_t{64} << 10;
  /// The disk that ranks see below its mount point; later runs and clusters find the files again.
  /// It is one disk for all nodes, with the rate and latency of ClusterSpec::disk. All other paths
  /// are the machine's own files, which take no virtual time.
  std::shared_ptr<SimDisk> disk = nullptr;
  /// Without a simulated disk: the machine's own files take the time of ClusterSpec::disk, as if
  /// each node had them on a disk of its own.
  bool host_files_take_time = false;
  /// A disk per node instead of `disk`, without faults; the first disk counts the operations.
  std::vector<std::shared_ptr<SimDisk>> node_disks = {};
  /// The faults of the disk, which apply to every run.
  std::vector<FileFault> file_faults = {};
  /// What goes wrong in every run: see simulator/faults/rules.h. Without rules nothing changes.
  FaultRules faults = {};
  /// Fails a run that would succeed although a rule for its world did not fire, or touched nothing:
  /// a test that plans a fault is to see one.
  bool faults_must_strike = false;
  /// The mesh by whose axes `faults` name ranks; by default that of `fold`.
  std::optional<Mesh> mesh = std::nullopt;
  /// Each run is written to it: what was drawn, what ranks came to, what they contributed. With
  /// `log_file` to a file as well. See simulator/core/run_log.h.
  std::shared_ptr<RunLog> log = nullptr;
  std::string log_file = {};
  /// Each run follows it, and fails at the first difference. It must be of the same cluster, seed,
  /// faults, program and versions.
  std::shared_ptr<const RunLog> replay = nullptr;
  /// A log without `replay` names operators and allocations, rather than hash them.
  bool log_names_work = false;
  /// A run that fails writes what each executed rank did last into this folder; see
  /// accelerate/dumps/dump_folder.h. Empty: nowhere.
  std::string dump_folder = {};
  /// Counts what ranks come to although there are no `faults`: see Cluster::sites().
  bool count_sites = false;
};

}  // namespace accelerate::simulator
