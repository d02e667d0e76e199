/// The Runtime of one simulated rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/types/span.h"
#include "accelerate/runtime/runtime.h"
#include "simulator/c10d/fabric.h"
#include "simulator/cluster/fault_actor.h"
#include "simulator/core/random.h"
#include "simulator/device/sim_device.h"
#include "simulator/disk/disk_queue.h"
#include "simulator/disk/file_faults.h"
#include "simulator/disk/overlay_files.h"
#include "simulator/disk/sim_files.h"

namespace accelerate::simulator {

/// Background tasks of one simulated rank, on the rank's own thread: steps run when the rank calls
/// its Runtime, at moments drawn from the seed.
///
/// A step's files take the task's time, not the rank's: what the step does to the disk is done at
/// once, and the task's next step, or the end of wait(), comes when the disk is through with it.
///
/// Each task draws how often a step runs: at one in 2 up to one in 64 occasions. With one seed a
/// task therefore ends at once, with another only in wait().
///
/// The first step of a task that is to begin at once runs when it is started.
///
/// A step that throws ends its task, and wait() throws that exception once. A dead rank (see
/// FileFault) runs no further steps. Threads: the rank's thread, which holds the baton.
class Background {
 public:
  Background(uint64_t seed, int rank, std::shared_ptr<Fabric> fabric,
             std::shared_ptr<FaultPlan> faults);

  std::unique_ptr<BackgroundTask> start(BackgroundStep step, BackgroundStart start);

  /// Runs a step of each task, or not, as drawn. Does nothing while a step runs or the stack
  /// unwinds.
  void occasion();

  bool in_step() const;
  /// The time for a step that runs now: that of the rank, and of the step's files so far.
  int64_t now_ns() const;
  /// Makes the rank wait, or the task whose step runs.
  void wait_until(int64_t ns);

 private:
  class Task;
  struct Shared;

  const std::shared_ptr<Shared> shared_;
};

class SimRuntime final : public Runtime {
 public:
  /// `devices` are the rank's, of which device() is the first; none if the cluster models no
  /// hardware. `disk` may be null. `in_memory`, if not null, is what ranks see instead of the
  /// machine's files: that of a run with shapes alone.
  SimRuntime(std::shared_ptr<Fabric> fabric, Topology topology, Environment environment,
             uint64_t seed, absl::Span<SimDevice* const> devices, std::shared_ptr<SimDisk> disk,
             std::shared_ptr<FaultPlan> faults, std::shared_ptr<DiskQueue> queue,
             std::shared_ptr<OverlayFiles> in_memory);
  ~SimRuntime() override;

  c10::Device device() const override;
  std::string device_family() const override;
  std::string device_name() const override;
  /// As the device's model has it.
  std::optional<bool> device_has(DeviceTrait trait) const override;
  std::optional<DeviceMemoryUse> device_memory() const override;
  /// The rank's devices; the host's memory is not modelled.
  FreeMemory free_memory() const override;
  void empty_device_cache() override;
  void observe_device(std::function<void(const DeviceWork&)> observer) override;
  bool owns_process() const override { return false; }
  void tag_memory(const at::Tensor& tensor, MemoryKind kind) override;
  void synchronize_device() override;
  bool check_replicas(const std::string& what, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                      const std::vector<int>& without,
                      const std::vector<std::pair<std::string, at::Tensor>>& tensors) override;
  // These ask the run's plan of faults.
  void record_step() override { note(FaultPoint::Kind::kStep); }
  void record_save() override { note(FaultPoint::Kind::kSave); }
  void record_load() override { note(FaultPoint::Kind::kLoad); }
  bool record_batch() override;
  std::optional<absl::Time> termination() override;
  /// A fixed epoch plus the cluster's virtual time, as the node's clock shows it.
  absl::Time now() override;
  void sleep_for(absl::Duration duration) override;
  uint64_t random_bits() override { return random_.next(); }
  FileSystem& files() override { return files_; }
  std::unique_ptr<BackgroundTask> start_background(BackgroundStep step,
                                                   BackgroundStart start) override;
  void write_console(ConsoleStream stream, std::string_view text) override;
  bool is_terminal(ConsoleStream stream) const override;
  c10::intrusive_ptr<c10d::Store> store() override;
  c10::intrusive_ptr<c10d::ProcessGroup> new_group(const GroupOptions& options) override;

  /// Called when the rank uses shared state; may run a background step.
  /// Errors: RankKilled if the rank is dead.
  void use();
  /// Called before the rank uses a file. Does not throw, because files return a status to dead
  /// ranks.
  void use_files();
  Background& background() { return background_; }
  /// What goes wrong in the run; null: nothing. It outlives this.
  void set_faults(FaultActor* faults) { actor_ = faults; }
  bool is_dead() const { return faults_->is_dead(topology().rank); }

 private:
  void note(FaultPoint::Kind kind);

  const std::shared_ptr<Fabric> fabric_;
  const std::shared_ptr<FaultPlan> faults_;
  FaultActor* actor_ = nullptr;
  SimFiles lasting_files_;
  SimFiles files_;
  Background background_;
  DeterministicRandom random_;
  const absl::Span<SimDevice* const> devices_;
  SimDevice* const device_;  // the first; null without devices
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace accelerate::simulator
