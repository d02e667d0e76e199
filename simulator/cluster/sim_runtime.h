/// The Runtime of one simulated rank.
#pragma once

#include <memory>

#include "accelerate/runtime/runtime.h"
#include "simulator/c10d/fabric.h"
#include "simulator/cluster/background.h"
#include "simulator/core/random.h"
#include "simulator/device/sim_device.h"
#include "simulator/disk/fault_plan.h"
#include "simulator/disk/sim_files.h"

namespace accelerate::simulator {

class SimRuntime final : public Runtime {
 public:
  /// `device` and `disk` may be null. If `addressable`, tensors are on sim:RANK, otherwise on the
  /// CPU.
  SimRuntime(std::shared_ptr<Fabric> fabric, Topology topology, Environment environment,
             uint64_t seed, SimDevice* device, bool addressable, std::shared_ptr<SimDisk> disk,
             std::shared_ptr<FaultPlan> faults);
  ~SimRuntime() override;

  c10::Device device() const override { return torch_device_; }
  std::string device_family() const override;
  std::string device_name() const override;
  std::optional<DeviceMemoryUse> device_memory() const override;
  void observe_device(std::function<void(const DeviceWork&)> observer) override;
  bool owns_process() const override { return false; }
  void synchronize_device() override;
  void check_replicas(const std::string& what, int num_replicas,
                      const std::vector<std::pair<std::string, at::Tensor>>& tensors) override;
  /// A fixed epoch plus the cluster's virtual time.
  absl::Time now() override;
  void sleep_for(absl::Duration duration) override;
  uint64_t random_bits() override { return random_.next(); }
  FileSystem& files() override { return files_; }
  std::unique_ptr<BackgroundTask> start_background(BackgroundStep step) override;
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
  bool is_dead() const { return faults_->is_dead(topology().rank); }

 private:
  const std::shared_ptr<Fabric> fabric_;
  const std::shared_ptr<FaultPlan> faults_;
  SimFiles files_;
  Background background_;
  DeterministicRandom random_;
  SimDevice* const device_;
  const c10::Device torch_device_;
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace accelerate::simulator
