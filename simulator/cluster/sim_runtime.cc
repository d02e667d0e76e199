#include "simulator/cluster/sim_runtime.h"

#include <algorithm>
#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/runtime/host.h"
#include "simulator/c10d/communicator.h"
#include "simulator/c10d/sim_backend.h"
#include "simulator/c10d/sim_store.h"

namespace accelerate::simulator {
namespace {

// 2020-01-01 00:00 UTC: a plausible time that is not mistaken for the wall clock's.
constexpr int64_t kEpochSeconds = 1577836800;

}  // namespace

SimRuntime::SimRuntime(std::shared_ptr<Fabric> fabric, Topology topology, Environment environment,
                       uint64_t seed, SimDevice* device, bool addressable,
                       std::shared_ptr<SimDisk> disk, std::shared_ptr<FaultPlan> faults)
    : Runtime(topology, std::move(environment)),
      fabric_(std::move(fabric)),
      faults_(std::move(faults)),
      files_(topology.rank, std::move(disk), faults_),
      background_(
          seed, topology.rank,
          {.check_alive = [faults = faults_, rank = topology.rank] { faults->check_alive(rank); },
           .scheduler = [fabric = fabric_]() -> Scheduler& { return fabric->scheduler(); }}),
      random_(DeterministicRandom::stream(seed, topology.rank)),
      device_(device),
      torch_device_(
          addressable ? c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(topology.rank))
                      : c10::Device(c10::kCPU)),
      store_(make_sim_store(fabric_)) {}

SimRuntime::~SimRuntime() { clear_shared(); }

void SimRuntime::use() {
  faults_->check_alive(topology().rank);
  background_.occasion();
  faults_->check_alive(topology().rank);
}

void SimRuntime::use_files() {
  // The seed decides the order in which ranks reach a shared disk.
  fabric_->scheduler().yield();
  if (!is_dead()) background_.occasion();
}

std::unique_ptr<BackgroundTask> SimRuntime::start_background(BackgroundStep step) {
  faults_->check_alive(topology().rank);
  return background_.start(std::move(step));
}

std::string SimRuntime::device_family() const {
  return device_ != nullptr ? device_->model().family : "cpu";
}

std::string SimRuntime::device_name() const {
  return device_ != nullptr ? device_->model().name : "";
}

std::optional<DeviceMemoryUse> SimRuntime::device_memory() const {
  if (device_ == nullptr) return std::nullopt;
  const DeviceMemory& memory = device_->memory();
  return DeviceMemoryUse{
      .in_use = memory.in_use(), .peak = memory.peak(), .capacity = memory.capacity()};
}

void SimRuntime::observe_device(std::function<void(const DeviceWork&)> observer) {
  if (device_ == nullptr) return;
  if (!observer) return device_->observe(nullptr);
  device_->observe([this, observer = std::move(observer)](const char* name, int stream,
                                                          int64_t start_ns, int64_t end_ns,
                                                          bool from_operator) {
    // The reported device is the one of the rank's tensors, even if the rank's number is too large.
    observer({.name = name,
              .device = {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(
                                                std::min(topology().rank, kMaxAddressableDevices))},
              .stream = stream,
              .start = absl::FromUnixSeconds(kEpochSeconds) + absl::Nanoseconds(start_ns),
              .end = absl::FromUnixSeconds(kEpochSeconds) + absl::Nanoseconds(end_ns),
              .from_operator = from_operator});
  });
}

void SimRuntime::synchronize_device() {
  if (device_ != nullptr) device_->synchronize();
}

void SimRuntime::check_replicas(const std::string& what, int num_replicas,
                                const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  if (!fabric_->detects_drift()) return;
  fabric_->replicas().check(topology().rank, what, num_replicas, tensors);
}

// Does not throw on a dead rank, because destructors read the clock.
absl::Time SimRuntime::now() {
  if (!is_dead()) background_.occasion();
  return absl::FromUnixSeconds(kEpochSeconds) + fabric_->scheduler().now();
}

void SimRuntime::sleep_for(absl::Duration duration) {
  use();
  fabric_->scheduler().sleep_for(duration);
  use();
}

void SimRuntime::write_console(ConsoleStream stream, std::string_view text) {
  if (is_dead()) return;
  host::write_console(stream, text);
}

bool SimRuntime::is_terminal(ConsoleStream stream) const { return host::is_terminal(stream); }

c10::intrusive_ptr<c10d::Store> SimRuntime::store() { return store_; }

c10::intrusive_ptr<c10d::ProcessGroup> SimRuntime::new_group(const GroupOptions& options) {
  use();
  const GroupOptions resolved = resolve_group(options);
  TORCH_CHECK_VALUE(resolved.backend.empty() || resolved.backend == "sim",
                    "a simulated cluster has the backend \"sim\" only, not \"", resolved.backend,
                    "\"");
  const std::vector<int>& ranks = resolved.ranks;
  const int member = static_cast<int>(
      std::lower_bound(ranks.begin(), ranks.end(), topology().rank) - ranks.begin());
  auto group = c10::make_intrusive<c10d::ProcessGroup>(
      c10::make_intrusive<c10d::PrefixStore>(absl::StrCat("group/", resolved.name), store_), member,
      static_cast<int>(ranks.size()));
  const auto backend = make_sim_backend(fabric_, fabric_->communicator(resolved.name, ranks),
                                        member, resolved.timeout);
  for (const c10::DeviceType type : {c10::kCPU, c10::kPrivateUse1}) {
    group->setBackend(type, c10d::ProcessGroup::BackendType::CUSTOM, backend);
  }
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  group->setGroupName(resolved.name);
  return group;
}

}  // namespace accelerate::simulator
