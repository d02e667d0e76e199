/// A whole cluster in this process: every rank is a thread with its own Runtime, and with its own
/// device or devices if the specification names one ("2x4:h100", "1x2:h100,devices=4").
///
///   simulator::Cluster cluster("2x4", {.seed = 7});
///   cluster.run_on_every_rank([](simulator::Rank& rank) {
///     Accelerator accelerator;
///     rank.report("loss", train(accelerator));
///   });
///   EXPECT_THAT(cluster.reports("loss"), AllBitwiseEqual());
///
/// The same topology and seed give the same run: the order in which ranks run is drawn from the
/// seed, time is virtual, and random bits follow from seed and rank. Threads: a Cluster is used by
/// one thread; only one cluster runs at a time in a process, because the
///          ranks take turns with LibTorch's process-wide state.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "accelerate/runtime/runtime.h"
#include "simulator/c10d/fold_plan.h"
#include "simulator/cluster/cluster_options.h"
#include "simulator/core/executed_ranks.h"
#include "simulator/core/run_log.h"
#include "simulator/device/sim_device.h"
#include "simulator/disk/overlay_files.h"
#include "simulator/faults/fault_run.h"
#include "simulator/hardware/cluster_spec.h"
#include "simulator/report/report.h"
#include "simulator/trace/trace.h"

namespace accelerate::simulator {

/// The argument of a rank's program.
class Rank {
 public:
  Rank(int index, Runtime& runtime, absl::Span<SimDevice* const> devices)
      : index_(index), runtime_(runtime), devices_(devices) {}

  int index() const { return index_; }
  /// Installed as Runtime::current() on the rank's thread.
  Runtime& runtime() { return runtime_; }

  /// The rank's simulated devices, their memory and clocks; none if the cluster models no hardware.
  absl::Span<SimDevice* const> devices() const { return devices_; }
  /// The first of them, which is Runtime::device(); null if there is none.
  SimDevice* device() const { return devices_.empty() ? nullptr : devices_[0]; }

  /// Hands a value to the owner of the cluster, once per name; a device's tensor is copied to the
  /// CPU. Errors: c10::ValueError otherwise.
  void report(const std::string& name, at::Tensor value);
  void report(const std::string& name, double value);

 private:
  friend class Cluster;
  const int index_;
  Runtime& runtime_;
  const absl::Span<SimDevice* const> devices_;
  std::map<std::string, at::Tensor> reports_;
};

/// The failure of one rank's program.
struct RankFailure {
  int rank = 0;
  std::string message;
  std::exception_ptr exception;
};

/// Thrown if at least one rank failed. `what()` names the first cause, all ranks that failed, and
/// the command that repeats the run.
class ClusterError : public std::runtime_error {
 public:
  ClusterError(const std::string& message, std::vector<RankFailure> failures)
      : std::runtime_error(message), failures_(std::move(failures)) {}

  /// Ordered by cause: ranks that failed by themselves are before those that lost their peers, and
  /// these before ranks that were ended with their machine or by mpirun.
  const std::vector<RankFailure>& failures() const { return failures_; }

 private:
  std::vector<RankFailure> failures_;
};

class Cluster {
 public:
  /// `spec` is text as in ClusterSpec. Errors: c10::ValueError that points at the character, says
  /// that a node has more devices than LibTorch counts, names a fault that can never fire, or says
  /// what folding needs.
  explicit Cluster(absl::string_view spec, ClusterOptions options = {});

  const ClusterSpec& spec() const { return spec_; }
  int world_size() const { return spec_.world_size(); }
  uint64_t seed() const { return options_.seed; }

  /// Runs `body` once per rank and returns when all ranks have ended. Each call is a new run.
  /// Errors: ClusterError if a rank threw or was killed, or left a collective that others never
  ///         joined.
  void run_on_every_rank(const std::function<void(Rank&)>& body);

  /// The values that ranks reported under `name` in the last run, by rank. A folded rank's is that
  /// of the rank that it counts as.
  /// Errors: c10::ValueError that names the ranks without a value.
  std::vector<at::Tensor> reports(const std::string& name) const;

  /// The virtual time of the last run, until the end of the last rank and of its device.
  absl::Duration elapsed() const { return elapsed_; }

  /// Which ranks run: all, unless ClusterOptions::fold is set.
  const ExecutedRanks& executed() const { return folds_.executed(); }

  /// The file faults that had an effect in the last run, each with its operation.
  const std::vector<std::string>& fired_file_faults() const { return fired_file_faults_; }

  /// What became of each of ClusterOptions::faults in the last run, in their order.
  const std::vector<FaultOutcome>& fault_outcomes() const { return fault_outcomes_; }

  /// How often each rank came to each site in the last run, so that a loop over them strikes each
  /// once. Empty without faults and without ClusterOptions::count_sites.
  const std::vector<SiteCounts>& sites() const { return sites_; }

  /// How the last run differed first from ClusterOptions::replay; empty if it did not.
  const std::string& log_difference() const { return log_difference_; }
  /// What the log of a run begins with.
  RunLog::Header log_header() const;

  /// Under kShapes: the machine's files with what the runs of this cluster changed in them, which
  /// is in memory alone. Null otherwise.
  const OverlayFiles* files_in_memory() const { return files_in_memory_.get(); }

  /// The trace of the last run. Errors: c10::ValueError unless the run was recorded.
  const Trace& trace() const;

 private:
  std::string headline() const;
  std::optional<RunWitness> make_witness();
  void write_report(Recorder& recorder, std::optional<RunFailure> failure);
  std::string repeat_hint() const;
  std::vector<std::string> fault_lines() const;
  std::string failure_text(const std::vector<RankFailure>& failures,
                           const std::optional<std::string>& unnoticed) const;

  const ClusterSpec spec_;
  const ClusterOptions options_;
  const FoldPlan folds_;
  const std::shared_ptr<OverlayFiles> files_in_memory_;
  std::vector<std::map<std::string, at::Tensor>> reports_;  // by task
  absl::Duration elapsed_;
  std::optional<Trace> trace_;
  std::vector<std::string> fired_file_faults_;
  std::vector<FaultOutcome> fault_outcomes_;
  std::vector<SiteCounts> sites_;
  RunLog own_log_;  // of a run without ClusterOptions::log
  std::string log_difference_;
};

}  // namespace accelerate::simulator
