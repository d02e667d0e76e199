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

MemoryCategory category_of(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kParameter:
    case MemoryKind::kBuffer: return MemoryCategory::kParameters;
    case MemoryKind::kGatheredParameter: return MemoryCategory::kGatheredParameters;
    case MemoryKind::kGradient: return MemoryCategory::kGradients;
    case MemoryKind::kReductionBuffer: return MemoryCategory::kBuckets;
  }
  TORCH_INTERNAL_ASSERT(false);
}

// The rank's part of its node's memory bandwidth is about that of its device's link to it on the
// machines that the presets describe, so what the host moves takes as long as it would over the
// link.
class SimHostWork final : public HostWork {
 public:
  SimHostWork(SimRuntime& runtime, double bytes_per_second)
      : runtime_(runtime), bytes_per_second_(bytes_per_second) {}

  void updated_parameters(double bytes) override {
    watch_host_update();
    runtime_.sleep_for(absl::Nanoseconds(std::llround(bytes / bytes_per_second_ * 1e9)));
  }

 private:
  SimRuntime& runtime_;
  const double bytes_per_second_;
};

// Names the blocks of devices.
class NamesOfBlocks final : public MemoryNames {
 public:
  void name(const at::Tensor& tensor, std::string_view name) override {
    MemoryBlock* const block = charged_block_of(tensor);
    if (block != nullptr) block->memory->name(block, name);
  }
};

}  // namespace

struct Background::Shared {
  int rank;
  std::shared_ptr<Fabric> fabric;
  std::shared_ptr<FaultPlan> faults;
  DeterministicRandom random;
  std::vector<Task*> tasks;  // unfinished tasks, oldest first
  Task* in_step = nullptr;   // the task whose step runs

  void check_alive() const { faults->check_alive(rank); }
  int64_t now_ns() const { return fabric->scheduler().now_ns(); }
  void wait_for_files(int64_t ns) const {
    fabric->sleep_for(absl::Nanoseconds(ns), SliceKind::kDisk);
  }
};

class Background::Task final : public BackgroundTask {
 public:
  Task(std::shared_ptr<Shared> shared, BackgroundStep step)
      : shared_(std::move(shared)),
        step_(std::move(step)),
        one_in_(uint64_t{2} << shared_->random.below(6)) {
    shared_->tasks.push_back(this);
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
    if (has_ended() || shared_->in_step != nullptr) return has_ended();
    shared_->check_alive();
    if (!is_done_ && !waits_for_files()) step();
    shared_->check_alive();
    // A caller that polls until the task is done must not keep other ranks from running.
    if (!has_ended()) shared_->fabric->scheduler().poll();
    return has_ended();
  }

  void wait() override {
    finish();
    if (std::exception_ptr error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
  }

  // Draws whether the task runs a step now, unless it waits for its files.
  bool is_next() {
    auto number = static_cast<int64_t>(shared_->random.below(one_in_));
    if (RunWitness* witness = shared_->fabric->witness()) {
      number =
          witness->choose(shared_->rank, static_cast<int64_t>(one_in_), number, shared_->now_ns());
    }
    const bool drawn = number == 0;
    return drawn && !waits_for_files();
  }

  int64_t files_ns() const { return files_ns_; }
  void set_files_ns(int64_t ns) { files_ns_ = ns; }

  void step() {
    shared_->in_step = this;
    const absl::Cleanup stepped = [this] { shared_->in_step = nullptr; };
    try {
      if (step_()) end();
    } catch (...) {
      error_ = std::current_exception();
      end();
    }
  }

 private:
  void finish() {
    TORCH_CHECK(has_ended() || shared_->in_step == nullptr,
                "a background step waits for a background task");
    for (int attempts = 0; !has_ended(); ++attempts) {
      shared_->check_alive();
      Scheduler& scheduler = shared_->fabric->scheduler();
      if (waits_for_files()) {
        shared_->wait_for_files(files_ns_ - scheduler.now_ns());
        attempts = 0;
        continue;
      }
      step();
      shared_->check_alive();
      if (is_done_ || waits_for_files()) continue;
      const absl::Duration pause =
          attempts < kQuickAttempts ? absl::Milliseconds(1) : absl::Seconds(1);
      if (attempts < kMaxAttempts) {
        scheduler.sleep_for(pause);
        continue;
      }
      auto describe = [] { return std::string("in a background task that is not done"); };
      if (scheduler.block(describe, {.at = scheduler.now() + pause}) != Wake::kStalled) continue;
      shared_->check_alive();
      end();
      throw c10::DistBackendError(scheduler.stall_report());
    }
    files_ns_ = 0;
  }

  void end() {
    is_done_ = true;
    std::erase(shared_->tasks, this);
  }

  // Whether the last step's files still take time.
  bool waits_for_files() const { return files_ns_ > 0 && shared_->now_ns() < files_ns_; }
  bool has_ended() const { return is_done_ && !waits_for_files(); }

  const std::shared_ptr<Shared> shared_;
  const BackgroundStep step_;
  const uint64_t one_in_;
  int64_t files_ns_ = 0;
  bool is_done_ = false;
  std::exception_ptr error_;
};

Background::Background(uint64_t seed, int rank, std::shared_ptr<Fabric> fabric,
                       std::shared_ptr<FaultPlan> faults)
    : shared_(std::make_shared<Shared>(
          Shared{.rank = rank,
                 .fabric = std::move(fabric),
                 .faults = std::move(faults),
                 .random = DeterministicRandom::stream(seed, kBackgroundStreams + rank)})) {}

std::unique_ptr<BackgroundTask> Background::start(BackgroundStep step, BackgroundStart start) {
  auto task = std::make_unique<Task>(shared_, std::move(step));
  if (start == BackgroundStart::kAtOnce && !in_step()) task->step();
  return task;
}

bool Background::in_step() const { return shared_->in_step != nullptr; }

int64_t Background::now_ns() const {
  const int64_t rank_ns = shared_->now_ns();
  return in_step() ? std::max(rank_ns, shared_->in_step->files_ns()) : rank_ns;
}

void Background::wait_until(int64_t ns) {
  if (in_step()) {
    shared_->in_step->set_files_ns(std::max(shared_->in_step->files_ns(), ns));
    return;
  }
  shared_->wait_for_files(std::max<int64_t>(0, ns - shared_->now_ns()));
}

void Background::occasion() {
  if (in_step() || shared_->tasks.empty() || std::uncaught_exceptions() > 0) return;
  // A step may end tasks.
  const std::vector<Task*> tasks = shared_->tasks;
  for (Task* task : tasks) {
    if (std::ranges::find(shared_->tasks, task) == shared_->tasks.end()) continue;
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
      background_(seed, topology.rank, fabric_, faults_),
      random_(DeterministicRandom::stream(seed, topology.rank)),
      devices_(devices),
      device_(devices.empty() ? nullptr : devices[0]),
      store_(make_sim_store(fabric_)) {
  if (in_memory != nullptr) {
    shared<ShapesAlone>(
        [this] { return std::make_unique<ShapesAlone>(ShapesAlone{lasting_files_}); });
  }
  if (device_ == nullptr) return;
  shared<MemoryNames>([] { return std::make_unique<NamesOfBlocks>(); });
  shared<HostWork>([this] {
    return std::make_unique<SimHostWork>(*this, device_->model().host_bytes_per_second);
  });
}

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

std::unique_ptr<BackgroundTask> SimRuntime::start_background(BackgroundStep step,
                                                             BackgroundStart start) {
  faults_->check_alive(topology().rank);
  return background_.start(std::move(step), start);
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
  if (block != nullptr) block->memory->set_declared_category(block, category_of(kind));
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
  if (!is_dead()) background_.occasion();
  int64_t ns = background_.now_ns();
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
