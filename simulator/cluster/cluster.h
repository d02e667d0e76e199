/// A whole cluster in this process: every rank is a thread with a Runtime of its own, and with a
/// device of its own if the specification names one ("2x4:h100").
///
///   simulator::Cluster cluster("2x4", {.seed = 7});
///   cluster.run_on_every_rank([](simulator::Rank& rank) {
///     Accelerator accelerator;
///     rank.report("loss", train(accelerator));
///   });
///   EXPECT_THAT(cluster.reports("loss"), AllBitwiseEqual());
///
/// The same topology and seed give the same run: the order in which ranks go is drawn from the
/// seed, time is virtual, random bits follow from seed and rank. Threads: a Cluster is used by one
/// thread; only one runs at a time in a process, because what
///          LibTorch keeps per process is swapped between ranks.
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
#include "accelerate/runtime/runtime.h"
#include "simulator/device/sim_device.h"
#include "simulator/disk/file_faults.h"
#include "simulator/disk/sim_disk.h"
#include "simulator/hardware/cluster_spec.h"
#include "simulator/trace/trace.h"

namespace accelerate::simulator {

/// What a rank's program gets.
class Rank {
 public:
  Rank(int index, Runtime& runtime, SimDevice* device)
      : index_(index), runtime_(runtime), device_(device) {}

  int index() const { return index_; }
  /// Installed as Runtime::current() on the rank's thread.
  Runtime& runtime() { return runtime_; }

  /// The rank's simulated device, its memory and clocks; null if the cluster models no hardware.
  /// Runtime::device() says where tensors go: from 128 ranks on, to the CPU, charged to the device.
  SimDevice* device() const { return device_; }

  /// Hands a value to the owner of the cluster, once per name; a device's is copied to the CPU.
  /// Errors: c10::ValueError otherwise.
  void report(const std::string& name, at::Tensor value);
  void report(const std::string& name, double value);

 private:
  friend class Cluster;
  const int index_;
  Runtime& runtime_;
  SimDevice* const device_;
  std::map<std::string, at::Tensor> reports_;
};

/// How one rank's program went wrong.
struct RankFailure {
  int rank = 0;
  std::string message;
  std::exception_ptr exception;
};

/// At least one rank failed. `what()` names the first cause, all ranks that failed, and how to
/// repeat the run.
class ClusterError : public std::runtime_error {
 public:
  ClusterError(const std::string& message, std::vector<RankFailure> failures)
      : std::runtime_error(message), failures_(std::move(failures)) {}

  /// By cause: ranks that failed by themselves come before those that lost their peers.
  const std::vector<RankFailure>& failures() const { return failures_; }

 private:
  std::vector<RankFailure> failures_;
};

struct ClusterOptions {
  uint64_t seed = 0;
  /// What ranks see of the process's environment; the topology is written over it.
  Environment environment = {};
  /// The command that repeats this run, for error messages. Empty: the test's own, if in a test.
  std::string repeat_command = {};
  /// Keeps what happened: see Cluster::trace(). Costs memory and a little time.
  bool record = false;
  /// Writes trace.json, report.html and summary.json there after each run; records.
  std::string report_directory = {};
  /// Fails programs that use a collective's tensors before they have waited for it.
  bool detect_races = true;
  /// Fails programs whose ranks end while their devices hold memory.
  bool detect_leaks = true;
  /// Fails programs whose replicas of a model differ when they are about to synchronise.
  bool detect_drift = true;
  /// What ranks find below its mount point, and leave there for later runs and clusters. Without
  /// one, as elsewhere, they find the machine's own files.
  std::shared_ptr<SimDisk> disk = nullptr;
  /// Each node's own instead of `disk`, without faults; the first counts the operations.
  std::vector<std::shared_ptr<SimDisk>> node_disks = {};
  /// What goes wrong with it, in each run anew.
  std::vector<FileFault> file_faults = {};
};

class Cluster {
 public:
  /// `spec` as in ClusterSpec. Errors: c10::ValueError pointing at the character, or naming a file
  /// fault that can never fire.
  explicit Cluster(absl::string_view spec, ClusterOptions options = {});

  const ClusterSpec& spec() const { return spec_; }
  int world_size() const { return spec_.world_size(); }
  uint64_t seed() const { return options_.seed; }

  /// Runs `body` once per rank and returns when all have ended. Each call is a fresh start.
  /// Errors: ClusterError if a rank threw or was killed, or left a collective that others never
  ///         joined.
  void run_on_every_rank(const std::function<void(Rank&)>& body);

  /// What the ranks reported under `name` in the last run, by rank.
  /// Errors: c10::ValueError naming the ranks that reported nothing.
  std::vector<at::Tensor> reports(const std::string& name) const;

  /// Virtual time the last run took: until the last rank was done, its device included.
  absl::Duration elapsed() const { return elapsed_; }

  /// The file faults that had an effect in the last run, each at which operation.
  const std::vector<std::string>& fired_file_faults() const { return fired_file_faults_; }

  /// What happened in the last run. Errors: c10::ValueError unless it was recorded.
  const Trace& trace() const;

 private:
  std::string headline() const;
  void write_report(Recorder& recorder);
  std::string repeat_hint() const;
  [[noreturn]] void raise(std::vector<RankFailure> failures) const;

  const ClusterSpec spec_;
  const ClusterOptions options_;
  std::vector<std::map<std::string, at::Tensor>> reports_;
  absl::Duration elapsed_;
  std::optional<Trace> trace_;
  std::vector<std::string> fired_file_faults_;
};

}  // namespace accelerate::simulator
