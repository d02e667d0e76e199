#include "simulator/device/sim_device.h"

#include <cmath>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include "absl/log/absl_check.h"
#include "absl/strings/str_cat.h"
#include "accelerate/base/number_text.h"
#include "simulator/hardware/driver_memory.h"
#include "simulator/hardware/kernel_tables.h"
#include "simulator/hardware/presets.h"
#include "simulator/network/network.h"
#include "simulator/trace/recorder.h"

namespace accelerate::simulator {
namespace {

thread_local RankPlace this_place;
thread_local int this_device = 0;

// ---- Allocators.

// Allocates blocks that `release` frees.
template <c10::DeleterFnPtr release>
class BlockAllocator : public c10::Allocator {
 public:
  c10::DeleterFnPtr raw_deleter() const final { return release; }
  void copy_data(void* target, const void* source, size_t bytes) const final {
    default_copy_data(target, source, bytes);
  }
};

class DeviceAllocator final : public BlockAllocator<&DeviceMemory::release> {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const int index = current_device();
    return block_data(SimDevice::of(index).memory().allocate(bytes, KernelScope::operation()),
                      torch_device(index));
  }
};

// Host memory that is charged to no device. A run that computes shapes only is about models that do
// not fit into the host's memory, so there a rank may not have much of it.
void* allocate_on_host(size_t bytes) {
  constexpr int64_t kLimit = int64_t{1} << 30;
  const auto devices = own_devices();
  if (devices.empty() || !devices[0]->computes_shapes()) {
    return DeviceMemory::allocate_uncharged(bytes);
  }
  std::atomic<int64_t>& use = devices[0]->host_use();
  const auto wanted = static_cast<int64_t>(bytes);
  const int64_t in_use = use;
  TORCH_CHECK(in_use + wanted <= kLimit, "rank ", current_rank(), " has ", binary_byte_text(in_use),
              " of tensors on the CPU and asks for ", binary_byte_text(wanted),
              " more. This run computes shapes only (numerics = ",
              "shapes), where a rank may have ", binary_byte_text(kLimit),
              " on the CPU: construct the model on its device, within a "
              "DefaultDeviceScope (accelerate/operators/default_device.h)");
  return DeviceMemory::allocate_uncharged(bytes, &use);
}

class HostAllocator final : public BlockAllocator<&DeviceMemory::release> {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    SimDevice* device = KernelScope::device();
    void* handle = device != nullptr
                       ? device->memory().allocate_for_kernel(bytes, KernelScope::operation())
                       : allocate_on_host(bytes);
    return block_data(handle, c10::Device(c10::kCPU));
  }
};

// All pinned blocks: a pointer into the middle of one is pinned as well.
struct PinnedBlocks {
  std::mutex mutex;
  std::map<const char*, size_t> size_by_begin;
};
PinnedBlocks& pinned_blocks() {
  static auto& blocks = *new PinnedBlocks();
  return blocks;
}

void release_pinned(void* data) {
  {
    PinnedBlocks& blocks = pinned_blocks();
    std::lock_guard<std::mutex> lock(blocks.mutex);
    blocks.size_by_begin.erase(static_cast<const char*>(data));
  }
  DeviceMemory::release(data);
}

class PinnedAllocator final : public BlockAllocator<&release_pinned> {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = allocate_on_host(bytes);
    if (data != nullptr) {
      PinnedBlocks& blocks = pinned_blocks();
      std::lock_guard<std::mutex> lock(blocks.mutex);
      blocks.size_by_begin.emplace(static_cast<const char*>(data), bytes);
    }
    return block_data(data, c10::Device(c10::kCPU), &release_pinned);
  }
};

// How long work takes at a part of the usual speed.
int64_t slowed(int64_t ns, double speed) {
  return speed == 1 ? ns : std::llround(static_cast<double>(ns) / speed);
}

}  // namespace

RankScope::RankScope(const RankPlace& place)
    : previous_place_(std::exchange(this_place, place)),
      previous_device_(std::exchange(this_device, place.first_device)) {}

RankScope::~RankScope() {
  this_place = previous_place_;
  this_device = previous_device_;
}

int current_rank() { return this_place.rank; }

absl::Span<SimDevice* const> own_devices() {
  return this_place.node_devices.subspan(this_place.first_device, this_place.num_devices);
}

bool owns_device(int index) {
  const int number = index - this_place.first_device;
  return this_place.rank < 0 || (number >= 0 && number < this_place.num_devices);
}

static_assert(kMaxDevicesPerNode == internal::kMaxDevicesPerNode);

int num_node_devices() {
  return this_place.rank < 0 ? kMaxDevicesPerNode
                             : static_cast<int>(this_place.node_devices.size());
}

int current_device() { return this_device; }
void set_current_device(int index) { this_device = index; }

SimDevice& own_device(int index, const char* what) {
  SimDevice& device = SimDevice::of(index);
  const int rank = current_rank();
  TORCH_CHECK(rank < 0 || rank == device.rank(), "rank ", rank, " ", what, " sim:", index,
              ", which is rank ", device.rank(), "'s device");
  return device;
}

SimDevice& SimDevice::of(int index) {
  if (this_place.rank < 0) return numbered(index);
  const absl::Span<SimDevice* const> devices = this_place.node_devices;
  const bool exists = index >= 0 && static_cast<size_t>(index) < devices.size();
  if (exists && devices[index] != nullptr) return *devices[index];
  C10_THROW_ERROR(
      ValueError,
      absl::StrCat("rank ", this_place.rank, " uses sim:", index, ", but ",
                   exists            ? "that is the device of a rank that is folded into others"
                   : devices.empty() ? "its cluster has no devices: name hardware, as in 1x4:h100"
                                     : absl::StrCat("its node has the devices sim:0 to sim:",
                                                    devices.size() - 1, " only")));
}

SimDevice& SimDevice::numbered(int number) {
  ABSL_CHECK_GE(number, 0);
  static std::mutex mutex;
  // Never destroyed: tensors may be kept until the process ends.
  static auto& devices = *new std::unordered_map<int, SimDevice*>();
  std::lock_guard<std::mutex> lock(mutex);
  SimDevice*& device = devices[number];
  if (device == nullptr) device = new SimDevice(number);
  return *device;
}

void SimDevice::reset(const ClusterSpec& spec, int64_t* host_clock_ns, Recorder* recorder) {
  rank_ = number_ / spec.devices_per_rank;
  ordinal_ = static_cast<uint8_t>(number_ % spec.devices_per_rank);
  index_ = number_ % spec.devices_per_node();
  memory_.set_index(index_);
  model_ = *spec.device;
  kernel_table_ = kernel_table_of(model_);
  const Preset* const preset = find_preset(model_.name);
  const int capability = preset != nullptr ? preset->compute_capability : 0;
  gpu_capability_ = model_.family != "gpu" ? 0 : capability > 0 ? capability : 80;
  chain_.end();
  replayed_step_ = launches_ = 0;
  told_blocks_ = {};
  view_ns_ = accelerate::simulator::host_ns(model_, kernel_table_, {.launches = false});
  link_ = link_in_node(spec);
  name_ = absl::StrCat("rank ", rank_, "'s sim:", index_, " (", model_.name, ")");
  recorder_ = recorder;
  observer_ = nullptr;
  host_clock_ns_ = host_clock_ns;
  streams_.assign(1, {});
  current_stream_ = 0;
  communication_ = {};
  generator_ = {};
  record_tasks(false);
  in_flight_.clear();
  names_.clear();
  DeviceMemory::Observer observer;
  if (recorder != nullptr) {
    observer = [this](MemoryCategory category, uint32_t module, int64_t delta) {
      recorder_->memory(rank_, ordinal_, host_ns(), category, delta, module);
    };
  }
  memory_.reset(name_, model_.memory_bytes, std::move(observer));
  if (const std::optional<DriverMemory> constants = driver_memory_of(model_)) {
    memory_.model_driver(*constants, model_, *this);
  }
  faults_ = nullptr;
  unknown_value_ = nullptr;
}

void SimDevice::compute_shapes(size_t largest_real, UnknownValue unknown_value) {
  memory_.compute_shapes(largest_real);
  unknown_value_ = std::move(unknown_value);
}

double SimDevice::unknown_value(const std::string& operation) const {
  TORCH_CHECK_VALUE(
      unknown_value_ != nullptr, operation, " on rank ", current_rank(), " in step ",
      memory_.step(), " gives the host values of a tensor of ", name_,
      " that were not computed, because this run computes shapes only (numerics = shapes). To go "
      "on with a value of your choice, set ClusterOptions::unknown_value, or pass "
      "--simulate_unknown_values nan to accelerate launch");
  return unknown_value_(operation);
}

void SimDevice::set_faults(FaultSites* faults) {
  faults_ = faults;
  if (faults == nullptr) return memory_.set_watch({});
  // A rank's program is what its own thread runs, not its helper threads.
  memory_.set_watch({.allocating =
                         [this](const char* operation) {
                           if (current_rank() != rank_) return false;
                           for (const SiteFault& fault : faults_->reach(
                                    rank_, Site::kAlloc, operation != nullptr ? operation : "")) {
                             if (fault.effect->kind != FaultKind::kOutOfMemory) continue;
                             faults_->touched(fault, 1);
                             return true;
                           }
                           return false;
                         },
                     .releasing =
                         [this] {
                           if (current_rank() == rank_) faults_->reach(rank_, Site::kFree, "");
                         }});
}

void SimDevice::detach() {
  memory_.detach();
  faults_ = nullptr;
  recorder_ = nullptr;
  observer_ = nullptr;
  await_collectives_ = nullptr;
  no_clock_ = *host_clock_ns_;
  host_clock_ns_ = &no_clock_;
}

void SimDevice::end() {
  host_waits(busy_until_ns());
  in_flight_.clear();
}

int SimDevice::new_stream() {
  streams_.push_back({});
  return num_streams() - 1;
}

uint32_t SimDevice::number_of(const char* name) {
  auto [found, is_new] = names_.try_emplace(name, 0);
  if (is_new) found->second = recorder_->intern(name);
  return found->second;
}

void SimDevice::host_waits(int64_t until_ns, const char* call) {
  if (faults_ != nullptr && call != nullptr && current_rank() == rank_) {
    faults_->reach(rank_, Site::kSync, call);
  }
  chain_.end();
  const int64_t from_ns = *host_clock_ns_;
  if (call != nullptr && recorder_ != nullptr) {
    recorder_->synchronisation(rank_, number_of(call), std::max(until_ns, from_ns) - from_ns);
  }
  if (until_ns <= from_ns) return;
  *host_clock_ns_ = until_ns;
  if (recorder_ != nullptr) recorder_->host_wait(rank_, from_ns, until_ns);
}

void SimDevice::run_on_stream(const char* name, SliceKind kind, int64_t host_ns,
                              int64_t duration_ns, double flops, double bytes,
                              double recomputed_flops) {
  if (keeps_tasks_) kept_tasks_.push_back({name, flops, bytes});
  if (faults_ != nullptr) {
    const double speed = faults_->speed(rank_, *host_clock_ns_);
    host_ns = slowed(host_ns, speed);
    duration_ns = slowed(duration_ns, speed);
  }
  host_works(host_ns);
  Stream& stream = streams_[current_stream_];
  const int64_t start_ns = std::max(stream.end_ns, *host_clock_ns_);
  const int64_t end_ns = start_ns + duration_ns;
  const StartedBy started_by = start_ns > stream.end_ns ? StartedBy::kHost
                               : stream.is_event        ? StartedBy::kEvent
                                                        : StartedBy::kStream;
  stream = {end_ns, /*is_event=*/false};
  if (observer_) observer_(name, current_stream_, start_ns, end_ns, /*from_operator=*/true);
  if (recorder_ == nullptr) return;
  const uint32_t number = number_of(name);
  recorder_->slice({.start_ns = start_ns,
                    .end_ns = end_ns,
                    .rank = rank_,
                    .stream = current_stream_,
                    .name = number,
                    .kind = kind,
                    .device = ordinal_,
                    .started_by = started_by});
  recorder_->op_cost(rank_, number, duration_ns, flops, bytes, recomputed_flops);
  if (is_in_compiled_region()) recorder_->predicted(rank_, duration_ns);
  if (c10::GradMode::is_enabled() && !memory_.in_backward()) {
    recorder_->module_cost(rank_, ordinal_, memory_.module(), duration_ns, flops, bytes);
  }
}

// Gradients are enabled in a backward pass where it runs a part of the forward pass again.
double SimDevice::recomputed_flops(const KernelWork& work) const {
  if (!memory_.in_backward()) return 0;
  if (c10::GradMode::is_enabled()) return work.flops;
  // Fused attention computes the scores again: one of five products.
  return work.kind == KernelWork::Kind::kAttention && work.backward ? work.flops / 5 : 0;
}

void SimDevice::launch(const char* name, const KernelWork& work, const OperatorCall& host) {
  if (work.kind == KernelWork::Kind::kProduct && !work.is_convolution) memory_.prepare_product();
  chain_.end();
  const KernelTime time = kernel_time(model_, kernel_table_, work);
  const int64_t host_ns = host_cost(host);
  run_on_stream(name, SliceKind::kKernel, host_ns, beside_collectives(time, time.ns, host_ns),
                work.flops, work.bytes, recomputed_flops(work));
}

int64_t SimDevice::host_cost(const OperatorCall& host) {
  if (!replays()) {
    launches_ += host.kernels;
    return accelerate::simulator::host_ns(model_, kernel_table_, host);
  }
  if (std::exchange(replayed_step_, memory_.step()) == memory_.step()) return 0;
  ++launches_;
  return accelerate::simulator::host_ns(model_, kernel_table_, {});
}

void SimDevice::launch_fused(const char* name, Fusion fusion, const std::vector<TensorUse>& uses,
                             KernelWork work, const OperatorCall& host) {
  const Stream& stream = streams_[current_stream_];
  const bool follows =
      chain_stream_ == current_stream_ && !stream.is_event && stream.end_ns == chain_end_ns_;
  if (follows && chain_.extend(fusion, uses, work)) {
    const KernelTime time = kernel_time(model_, kernel_table_, chain_.total());
    const int64_t ns = std::max(chain_ns_, time.ns);
    run_on_stream(name, SliceKind::kKernel, /*host_ns=*/0,
                  beside_collectives(time, ns - chain_ns_, /*host_ns=*/0), work.flops, work.bytes,
                  recomputed_flops(work));
    chain_ns_ = ns;
  } else {
    launch(name, work, host);
    chain_.begin(fusion, uses, work);
    chain_ns_ = kernel_time(model_, kernel_table_, work).ns;
  }
  chain_stream_ = current_stream_;
  chain_end_ns_ = stream.end_ns;
}

int64_t SimDevice::beside_collectives(const KernelTime& time, int64_t duration_ns,
                                      int64_t host_ns) {
  if (!is_measured()) return duration_ns;
  const int64_t launched_ns = this->host_ns() + host_ns;
  return communication_.launch(current_stream_, launched_ns,
                               std::max(stream_ns(current_stream_), launched_ns), duration_ns,
                               /*is_bound_by_arithmetic=*/time.compute_ns > time.memory_ns);
}

void SimDevice::add_finished_collective(int64_t start_ns, int64_t end_ns, int multiprocessors) {
  const double share =
      is_measured() ? static_cast<double>(multiprocessors) / kernel_table_->multiprocessors : 0;
  communication_.add_finished(start_ns, end_ns, share, [this](int number, int64_t slowed_end_ns) {
    Stream& stream = streams_[number];
    const int64_t from_ns = stream.end_ns;
    if (slowed_end_ns <= from_ns) return;  // it has waited for something else since
    stream = {slowed_end_ns, /*is_event=*/false};
    if (recorder_ == nullptr) return;
    recorder_->slice({.start_ns = from_ns,
                      .end_ns = slowed_end_ns,
                      .rank = rank_,
                      .stream = number,
                      .name = recorder_->intern("kernels slowed by communication"),
                      .kind = SliceKind::kKernel,
                      .device = ordinal_,
                      .started_by = StartedBy::kStream});
  });
}

void SimDevice::use_scratch(size_t bytes, const char* operation) {
  DeviceMemory::release(memory_.allocate(bytes, operation));
}

void SimDevice::launch_collective() {
  if (replays()) return;
  ++launches_;
  host_works(accelerate::simulator::collective_host_ns(model_, kernel_table_));
}

void SimDevice::record_work() {
  const AllocationCount blocks = memory_.allocated();
  const AllocationCount before = std::exchange(told_blocks_, blocks);
  const int64_t launches = std::exchange(launches_, 0);
  if (recorder_ == nullptr) return;
  recorder_->device_work(rank_, {.launches = launches,
                                 .blocks = blocks.blocks - before.blocks,
                                 .block_bytes = blocks.bytes - before.bytes});
}

void SimDevice::record_link(LinkKind kind, double bytes, int64_t duration_ns) {
  if (recorder_ == nullptr) return;
  const int64_t end_ns = stream_ns(current_stream_);
  recorder_->link(rank_, kind, bytes, end_ns - duration_ns, end_ns);
}

void SimDevice::transfer(bool to_host, double bytes, bool is_pinned) {
  const int64_t duration_ns = host_copy_ns(model_, kernel_table_, bytes, is_pinned);
  ++launches_;
  run_on_stream(to_host ? "copy to host" : "copy to device", SliceKind::kCopy,
                accelerate::simulator::host_ns(model_, kernel_table_, {}), duration_ns, 0, bytes);
  record_link(to_host ? LinkKind::kToHost : LinkKind::kFromHost, bytes, duration_ns);
}

void SimDevice::transfer_to(SimDevice& target, double bytes) {
  const int64_t duration_ns = std::max(
      link_.latency_ns + static_cast<int64_t>(std::llround(bytes / link_.bytes_per_second * 1e9)),
      model_.kernel_ns_min);
  ++launches_;
  stream_waits(current_stream_, target.stream_ns(target.current_stream()));
  run_on_stream("copy between devices", SliceKind::kCopy,
                accelerate::simulator::host_ns(model_, kernel_table_, {}), duration_ns, 0, bytes);
  // Both are devices of this rank.
  record_link(LinkKind::kNodeOut, bytes, duration_ns);
  record_link(LinkKind::kNodeIn, bytes, duration_ns);
  target.stream_waits(target.current_stream(), stream_ns(current_stream_));
}

void SimDevice::free_in_flight(const InFlightOwner* owner) {
  std::erase_if(in_flight_,
                [owner](const InFlight& memory) { return memory.owner.get() == owner; });
}

c10::DataPtr block_data(void* handle, c10::Device device, c10::DeleterFnPtr release) {
  return {handle == nullptr ? nullptr : MemoryBlock::of(handle)->data(), handle, release, device};
}

MemoryBlock* charged_block_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  MemoryBlock* block = block_of(tensor.storage().data_ptr());
  return block != nullptr && block->memory != nullptr ? block : nullptr;
}

c10::Allocator& device_allocator() {
  static auto& allocator = *new DeviceAllocator();
  return allocator;
}

c10::Allocator& pinned_allocator() {
  static auto& allocator = *new PinnedAllocator();
  return allocator;
}

bool is_pinned(const void* data) {
  PinnedBlocks& blocks = pinned_blocks();
  std::lock_guard<std::mutex> lock(blocks.mutex);
  auto after = blocks.size_by_begin.upper_bound(static_cast<const char*>(data));
  if (after == blocks.size_by_begin.begin()) return false;
  auto [begin, bytes] = *std::prev(after);
  return static_cast<const char*>(data) < begin + bytes;
}

void install_host_allocator() {
  static auto& allocator = *new HostAllocator();
  c10::SetCPUAllocator(&allocator, /*priority=*/1);
}

}  // namespace accelerate::simulator
