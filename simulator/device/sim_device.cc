#include "simulator/device/sim_device.h"

#include <array>
#include <atomic>
#include <cmath>
#include <mutex>
#include <utility>

#include "absl/log/absl_check.h"
#include "absl/strings/str_cat.h"
#include "simulator/device/host_memory.h"
#include "simulator/trace/recorder.h"

namespace accelerate::simulator {
namespace {

// At least the number of ranks that a simulated cluster may have.
constexpr int kMaxDevices = 4096;

thread_local int this_rank = -1;
thread_local int this_device = 0;

}  // namespace

int current_rank() { return this_rank; }
int current_device() { return this_device; }
void set_current_device(int index) { this_device = index; }

RankScope::RankScope(int rank)
    : previous_rank_(std::exchange(this_rank, rank)),
      previous_device_(std::exchange(this_device, rank < kMaxAddressableDevices ? rank : 0)) {}

RankScope::~RankScope() {
  this_rank = previous_rank_;
  this_device = previous_device_;
}

SimDevice& SimDevice::of(int index) {
  ABSL_CHECK(index >= 0 && index < kMaxDevices) << index;
  // Read by every operator, so without a lock. Never destroyed: tensors may be kept until the
  // process ends.
  static auto& devices = *new std::array<std::atomic<SimDevice*>, kMaxDevices>();
  if (SimDevice* device = devices[index].load(std::memory_order_acquire)) return *device;
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  SimDevice* device = devices[index].load(std::memory_order_relaxed);
  if (device == nullptr) {
    device = new SimDevice(index);
    devices[index].store(device, std::memory_order_release);
  }
  return *device;
}

void SimDevice::reset(const DeviceModel& model, int64_t* host_clock_ns, Recorder* recorder) {
  model_ = model;
  name_ = absl::StrCat("sim:", index_, " (", model.name, ")");
  recorder_ = recorder;
  observer_ = nullptr;
  host_clock_ns_ = host_clock_ns;
  streams_.assign(1, 0);
  current_stream_ = 0;
  debt_ns_ = 0;
  in_flight_.clear();
  names_.clear();
  DeviceMemory::Observer observer;
  if (recorder != nullptr) {
    observer = [this](MemoryCategory category, int64_t delta) {
      recorder_->memory(index_, host_ns(), category, delta);
    };
  }
  memory_.reset(name_, model.memory_bytes, std::move(observer));
}

void SimDevice::detach() {
  memory_.detach();
  recorder_ = nullptr;
  observer_ = nullptr;
  no_clock_ = *host_clock_ns_;
  host_clock_ns_ = &no_clock_;
}

void SimDevice::end() {
  synchronize();
  in_flight_.clear();
}

int SimDevice::new_stream() {
  streams_.push_back(0);
  return num_streams() - 1;
}

void SimDevice::synchronize() {
  for (const int64_t ready_ns : streams_) host_waits(ready_ns);
}

void SimDevice::run_on_stream(const char* name, SliceKind kind, int64_t duration_ns, double flops,
                              double bytes) {
  *host_clock_ns_ += model_.launch_ns;
  int64_t& ready_ns = streams_[current_stream_];
  const int64_t start_ns = std::max(ready_ns, *host_clock_ns_);
  ready_ns = start_ns + duration_ns;
  if (observer_) observer_(name, current_stream_, start_ns, ready_ns, /*from_operator=*/true);
  if (recorder_ == nullptr) return;
  auto [found, is_new] = names_.try_emplace(name, 0);
  if (is_new) found->second = recorder_->intern(name);
  recorder_->slice({.start_ns = start_ns,
                    .end_ns = ready_ns,
                    .rank = index_,
                    .stream = current_stream_,
                    .name = found->second,
                    .kind = kind});
  recorder_->op_cost(index_, found->second, duration_ns, flops, bytes);
}

void SimDevice::launch(const char* name, double flops, double bytes, MathType type) {
  const double seconds =
      std::max(flops / model_.flops(type), bytes / model_.memory_bytes_per_second);
  const auto duration_ns = static_cast<int64_t>(std::llround(seconds * 1e9));
  run_on_stream(name, SliceKind::kKernel, std::max(duration_ns, model_.kernel_ns_min), flops,
                bytes);
}

void SimDevice::transfer(const char* name, double bytes) {
  const auto duration_ns =
      static_cast<int64_t>(std::llround(bytes / model_.host_bytes_per_second * 1e9));
  run_on_stream(name, SliceKind::kCopy, std::max(duration_ns, model_.kernel_ns_min), 0, bytes);
}

void SimDevice::land(const InFlightOwner* owner) {
  std::erase_if(in_flight_,
                [owner](const InFlight& memory) { return memory.owner.get() == owner; });
}

}  // namespace accelerate::simulator
