#include "simulator/cluster/sim_runtime.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <memory>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "accelerate/runtime/host.h"
#include "accelerate/runtime/shared_objects.h"
#include "simulator/c10d/communicators.h"
#include "simulator/c10d/sim_backend.h"
#include "simulator/core/scheduler.h"
#include "simulator/device/op_watch.h"
#include "simulator/hardware/presets.h"

namespace accelerate::simulator {
namespace {

// 2020-01-01 00:00 UTC: a plausible time that is not mistaken for the wall clock's.
constexpr int64_t kEpochSeconds = 1577836800;

// Distinct from the random streams of ranks and of faults.
constexpr uint64_t kBackgroundStreams = uint64_t{1} << 41;

// After this many steps without an end, a waiting task counts as blocked: it is stalled if all
// other ranks are.
constexpr int kMaxAttempts = 10'000;
// The pause between the first attempts is a millisecond, later a second.
constexpr int kQuickAttempts = 1'000;

// By MemoryKind.
constexpr MemoryCategory kCategories[] = {
    MemoryCategory::kParameters, MemoryCategory::kGatheredParameters, MemoryCategory::kGradients,
    MemoryCategory::kBuckets, MemoryCategory::kParameters};
static_assert(std::size(kCategories) == static_cast<size_t>(MemoryKind::kBuffer) + 1);

// Names a device's block.
void name_block(const at::Tensor& tensor, std::string_view name) {
  MemoryBlock* const block = charged_block_of(tensor);
  if (block != nullptr) block->memory->name(block, name);
}

}  // namespace

class Background::Task final : public BackgroundTask {
 public:
  Task(std::shared_ptr<Background> background, BackgroundStep step)
      : all_(std::move(background)),
        step_(std::move(step)),
        one_in_(uint64_t{2} << all_->random_.below(6)) {
    all_->tasks_.push_back(this);
  }

  ~Task() override {
    try {
      finish();
    } catch (...) {
      // The rank is dead or stalled, and a destructor cannot report an error.
    }
    end();
  }

  bool is_done() override {
    if (has_ended() || all_->in_step_ != nullptr) return has_ended();
    all_->check_alive();
    if (!is_done_ && !waits_for_files()) step();
    all_->check_alive();
    // A caller that polls until the task is done must not keep other ranks from running.
    if (!has_ended()) all_->fabric_->scheduler().poll();
    return has_ended();
  }

  void wait() override {
    finish();
    if (std::exception_ptr error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
  }

  // Draws whether the task runs a step now, unless it waits for its files.
  bool is_next() {
    auto number = static_cast<int64_t>(all_->random_.below(one_in_));
    if (RunWitness* witness = all_->fabric_->witness()) {
      number = witness->choose(all_->rank_, static_cast<int64_t>(one_in_), number, all_->rank_ns());
    }
    const bool drawn = number == 0;
    return drawn && !waits_for_files();
  }

  int64_t files_ns() const { return files_ns_; }
  void set_files_ns(int64_t ns) { files_ns_ = ns; }

  void step() {
    all_->in_step_ = this;
    const absl::Cleanup stepped = [this] { all_->in_step_ = nullptr; };
    try {
      if (step_()) end();
    } catch (...) {
      error_ = std::current_exception();
      end();
    }
  }

 private:
  void finish() {
    TORCH_CHECK(has_ended() || all_->in_step_ == nullptr,
                "a background step waits for a background task");
    for (int attempts = 0; !has_ended(); ++attempts) {
      all_->check_alive();
      Scheduler& scheduler = all_->fabric_->scheduler();
      if (waits_for_files()) {
        all_->wait_for_files(files_ns_ - scheduler.now_ns());
        attempts = 0;
        continue;
      }
      step();
      all_->check_alive();
      if (is_done_ || waits_for_files()) continue;
      const absl::Duration pause =
          attempts < kQuickAttempts ? absl::Milliseconds(1) : absl::Seconds(1);
      if (attempts < kMaxAttempts) {
        scheduler.sleep_for(pause);
        continue;
      }
      auto describe = [] { return std::string("in a background task that is not done"); };
      if (scheduler.block(describe, {.at = scheduler.now() + pause}) != Wake::kStalled) continue;
      all_->check_alive();
      end();
      throw c10::DistBackendError(scheduler.stall_report());
    }
    files_ns_ = 0;
  }

  void end() {
    is_done_ = true;
    std::erase(all_->tasks_, this);
  }

  // Whether the last step's files still take time.
  bool waits_for_files() const { return files_ns_ > 0 && all_->rank_ns() < files_ns_; }
  bool has_ended() const { return is_done_ && !waits_for_files(); }

  const std::shared_ptr<Background> all_;
  const BackgroundStep step_;
  const uint64_t one_in_;
  int64_t files_ns_ = 0;
  bool is_done_ = false;
  std::exception_ptr error_;
};

Background::Background(uint64_t seed, int rank, std::shared_ptr<Fabric> fabric,
                       std::shared_ptr<FaultPlan> faults)
    : rank_(rank),
      fabric_(std::move(fabric)),
      faults_(std::move(faults)),
      random_(DeterministicRandom::stream(seed, kBackgroundStreams + rank)) {}

void Background::wait_for_files(int64_t ns) const {
  fabric_->sleep_for(absl::Nanoseconds(ns), SliceKind::kDisk);
}

std::unique_ptr<BackgroundTask> Background::start(BackgroundStep step, BackgroundStart start) {
  auto task = std::make_unique<Task>(shared_from_this(), std::move(step));
  if (start == BackgroundStart::kAtOnce && !in_step()) task->step();
  return task;
}

int64_t Background::now_ns() const {
  return in_step() ? std::max(rank_ns(), in_step_->files_ns()) : rank_ns();
}

void Background::wait_until(int64_t ns) {
  if (in_step()) {
    in_step_->set_files_ns(std::max(in_step_->files_ns(), ns));
    return;
  }
  wait_for_files(std::max<int64_t>(0, ns - rank_ns()));
}

void Background::occasion() {
  if (in_step() || tasks_.empty() || std::uncaught_exceptions() > 0) return;
  // A step may end tasks.
  const std::vector<Task*> tasks = tasks_;
  for (Task* task : tasks) {
    if (std::ranges::find(tasks_, task) == tasks_.end()) continue;
    if (task->is_next()) task->step();
  }
}

SimRuntime::SimRuntime(std::shared_ptr<Fabric> fabric, Topology topology, Environment environment,
                       uint64_t seed, absl::Span<SimDevice* const> devices,
                       std::shared_ptr<SimDisk> disk, std::shared_ptr<FaultPlan> faults,
                       std::shared_ptr<DiskQueue> queue, std::shared_ptr<OverlayFiles> in_memory)
    : Runtime(topology, std::move(environment)),
      fabric_(std::move(fabric)),
      faults_(std::move(faults)),
      lasting_files_(topology.rank, disk, faults_, queue),
      files_(topology.rank, std::move(disk), faults_, std::move(queue), in_memory),
      background_(std::make_shared<Background>(seed, topology.rank, fabric_, faults_)),
      random_(DeterministicRandom::stream(seed, topology.rank)),
      devices_(devices),
      device_(devices.empty() ? nullptr : devices[0]),
      store_(make_sim_store(fabric_)) {
  if (in_memory != nullptr) {
    shared<ShapesAlone>(
        [this] { return std::make_unique<ShapesAlone>(ShapesAlone{lasting_files_}); });
  }
  if (device_ == nullptr) return;
  shared<MemoryNames>([] { return std::make_unique<MemoryNames>(MemoryNames{&name_block}); });
  // The rank's part of its node's memory bandwidth is about that of its device's link to it on the
  // machines that the presets describe, so what the host moves takes as long as it would over the
  // link.
  const auto update = [this, rate = device_->model().host_bytes_per_second](double bytes) {
    watch_host_update();
    sleep_for(absl::Nanoseconds(std::llround(bytes / rate * 1e9)));
  };
  shared<HostWork>([&update] { return std::make_unique<HostWork>(HostWork{update}); });
}

SimRuntime::~SimRuntime() { clear_shared(); }

void SimRuntime::use() {
  faults_->check_alive(topology().rank);
  background_->occasion();
  faults_->check_alive(topology().rank);
}

void SimRuntime::use_files() {
  // The seed decides the order in which ranks reach a shared disk.
  fabric_->scheduler().yield();
  if (!is_dead()) background_->occasion();
}

std::unique_ptr<BackgroundTask> SimRuntime::start_background(BackgroundStep step,
                                                             BackgroundStart start) {
  faults_->check_alive(topology().rank);
  return background_->start(std::move(step), start);
}

c10::Device SimRuntime::device() const {
  return device_ != nullptr ? torch_device(device_->index()) : c10::Device(c10::kCPU);
}

std::string SimRuntime::device_family() const {
  return device_ != nullptr ? device_->model().family : "cpu";
}

std::string SimRuntime::device_name() const {
  return device_ != nullptr ? device_->model().name : "";
}

std::optional<bool> SimRuntime::device_has(DeviceTrait trait) const {
  if (device_ == nullptr) return false;
  switch (trait) {
    case DeviceTrait::kFp8Products: return multiplies_fp8(device_->model());
    case DeviceTrait::kRocm: return is_amd(device_->model());
    case DeviceTrait::kFirstGaudi: return is_first_gaudi(device_->model());
  }
  return false;
}

std::optional<DeviceMemoryUse> SimRuntime::device_memory() const {
  if (device_ == nullptr) return std::nullopt;
  const DeviceMemory& memory = device_->memory();
  DeviceMemoryUse use{
      .in_use = memory.in_use(), .peak = memory.peak(), .capacity = memory.capacity()};
  // As on CUDA: blocks as the allocator hands them out, with workspaces.
  if (const std::optional<DriverFigures> figures = memory.driver_figures()) {
    use.in_use = figures->allocator.allocated;
    use.peak = figures->allocator.allocated_peak;
  }
  return use;
}

FreeMemory SimRuntime::free_memory() const {
  FreeMemory free;
  for (SimDevice* device : devices_) {
    const DeviceMemory& memory = device->memory();
    const std::optional<DriverFigures> figures = memory.driver_figures();
    free.accelerators.emplace_back(device->index(),
                                   figures ? figures->free() : memory.capacity() - memory.in_use());
  }
  return free;
}

void SimRuntime::empty_device_cache() {
  for (SimDevice* device : devices_) device->memory().empty_cache();
}

void SimRuntime::observe_device(std::function<void(const DeviceWork&)> observer) {
  for (SimDevice* device : devices_) {
    if (!observer) {
      device->observe(nullptr);
      continue;
    }
    device->observe(
        [observer, torch_device = torch_device(device->index())](
            const char* name, int stream, int64_t start_ns, int64_t end_ns, bool from_operator) {
          observer({.name = name,
                    .device = torch_device,
                    .stream = stream,
                    .start = absl::FromUnixSeconds(kEpochSeconds) + absl::Nanoseconds(start_ns),
                    .end = absl::FromUnixSeconds(kEpochSeconds) + absl::Nanoseconds(end_ns),
                    .from_operator = from_operator});
        });
  }
}

void SimRuntime::tag_memory(const at::Tensor& tensor, MemoryKind kind) {
  MemoryBlock* const block = charged_block_of(tensor);
  if (block == nullptr) return;
  block->memory->set_declared_category(block, kCategories[static_cast<size_t>(kind)]);
}

void SimRuntime::synchronize_device() {
  if (device_ != nullptr) device_->synchronize("synchronize device");
}

bool SimRuntime::check_replicas(const std::string& what,
                                const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                const std::vector<int>& without,
                                const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  if (!fabric_->options().detect_drift) return false;
  const Communicator& communicator = *fabric_->communicators().at(group->getGroupName());
  fabric_->replicas().check(topology().rank, what, communicator.num_executed(without), tensors);
  return true;
}

void SimRuntime::note(FaultPoint::Kind kind) {
  if (actor_ != nullptr) actor_->progress(topology().rank, kind);
}

bool SimRuntime::record_batch() { return actor_ == nullptr || actor_->batch(topology().rank); }

std::optional<absl::Time> SimRuntime::termination() {
  if (actor_ == nullptr) return std::nullopt;
  const std::optional<absl::Duration> end = actor_->termination(topology().rank);
  if (!end) return std::nullopt;
  return absl::FromUnixSeconds(kEpochSeconds) + *end;
}

// Does not throw on a dead rank, because destructors read the clock.
absl::Time SimRuntime::now() {
  if (!is_dead()) background_->occasion();
  int64_t ns = background_->now_ns();
  if (actor_ != nullptr) ns += actor_->skew_ns(topology().rank, ns);
  return absl::FromUnixSeconds(kEpochSeconds) + absl::Nanoseconds(ns);
}

void SimRuntime::sleep_for(absl::Duration duration) {
  use();
  fabric_->sleep_for(duration);
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
  if (actor_ != nullptr) actor_->reach(topology().rank, Site::kGroup, resolved.name);
  const std::vector<int>& ranks = resolved.ranks;
  const int member = static_cast<int>(
      std::lower_bound(ranks.begin(), ranks.end(), topology().rank) - ranks.begin());
  auto group = c10::make_intrusive<c10d::ProcessGroup>(
      c10::make_intrusive<c10d::PrefixStore>(absl::StrCat("group/", resolved.name), store_), member,
      static_cast<int>(ranks.size()));
  const auto backend = make_sim_backend(
      fabric_, communicator_of(*fabric_, resolved.name, ranks, resolved.axis, resolved.backend),
      member, resolved.timeout);
  for (const c10::DeviceType type : {c10::kCPU, c10::kPrivateUse1}) {
    group->setBackend(type, c10d::ProcessGroup::BackendType::CUSTOM, backend);
  }
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  group->setGroupName(resolved.name);
  return group;
}

}  // namespace accelerate::simulator
