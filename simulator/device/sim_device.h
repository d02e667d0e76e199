/// One simulated device: its model, its memory, its streams' clocks, and what is in flight on it.
///
/// Devices have the names that they have on a real cluster: on every node they count from sim:0. If
/// each rank has d devices, those of local rank r are sim:r*d to sim:r*d+d-1, and the first is the
/// current one. All ranks live in one process, so "sim:0" means another device on another node: on
/// a rank's thread it is that of the rank's node. A tensor knows its index only; whose it is, its
/// memory says (DeviceMemory::device).
///
/// The allocators of simulated devices and of the host around them: once installed, an allocator of
/// the simulator makes the memory of all CPU tensors. So the result of a kernel on the host becomes
/// memory of a device without a copy.
///
/// Units: nanoseconds of virtual time since the start of the run.
/// Threads: a device belongs to the thread of its rank while that holds the baton. Allocators may
///          be used on any thread, as LibTorch's; a KernelScope acts on its own thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include "absl/types/span.h"
#include "accelerate/base/libtorch_fwd.h"
#include "simulator/device/caching_allocator.h"
#include "simulator/device/communication_share.h"
#include "simulator/device/compiled_regions.h"
#include "simulator/device/device_memory.h"
#include "simulator/device/kernel_chain.h"
#include "simulator/faults/sites.h"
#include "simulator/hardware/cluster_spec.h"
#include "simulator/hardware/kernel_time.h"
#include "simulator/trace/trace.h"

namespace accelerate::simulator {

class Recorder;

/// The number that the host gets when `operation` gives it a value that was not computed: see
/// shapes.h. Where the tensor holds integers, what is not finite counts as 0.
using UnknownValue = std::function<double(const std::string& operation)>;

/// LibTorch counts devices in eight bits.
inline constexpr int kMaxDevicesPerNode = 127;

/// The user of memory that is in flight, for error messages.
class InFlightOwner {
 public:
  virtual ~InFlightOwner() = default;
  /// "all_reduce #3 (sum, Float[4]) of group ..."
  virtual std::string describe() const = 0;
};

/// Memory that a collective uses, and keeps alive, until the program has waited for it.
struct InFlight {
  c10::intrusive_ptr<c10::StorageImpl> storage;
  const char* begin;
  const char* end;
  bool written;  ///< the collective writes it, so nothing else may use it; else it may be read
  std::shared_ptr<const InFlightOwner> owner;
};

/// One piece of work of a stream.
struct DeviceTask {
  const char* name;  ///< never destroyed
  double flops;
  double bytes;
};

class SimDevice final : public CachingAllocator::Driver {
 public:
  /// sim:INDEX of the node of this thread's rank; on other threads the device of that number.
  /// Errors: c10::ValueError if the node has no such device, or it is a folded rank's.
  static SimDevice& of(int index);
  /// A device by its number in the cluster: the n-th of rank r is number r * devices_per_rank + n.
  /// It is never destroyed; a run begins with reset().
  static SimDevice& numbered(int number);

  SimDevice(const SimDevice&) = delete;
  SimDevice& operator=(const SimDevice&) = delete;

  /// Begins a run on this cluster, which has devices. `host_clock_ns` is the clock of the rank's
  /// thread; `recorder` may be null.
  void reset(const ClusterSpec& spec, int64_t* host_clock_ns, Recorder* recorder);
  /// Until the next reset(), memory of more than `largest_real` bytes has no values: see shapes.h.
  /// `unknown_value` may be null.
  void compute_shapes(size_t largest_real, UnknownValue unknown_value);
  /// Ends the rank's program: the host waits for the device, and no memory stays in flight.
  void end();
  /// Ends the run: nothing is recorded afterwards.
  void detach();

  /// On its node, as LibTorch counts.
  int index() const { return index_; }
  /// The rank that it belongs to, and its number among that rank's devices.
  int rank() const { return rank_; }
  uint8_t ordinal() const { return ordinal_; }
  /// "rank 3's sim:1 (h100)".
  const std::string& name() const { return name_; }
  const DeviceModel& model() const { return model_; }
  /// NVIDIA's compute capability, as in 90, that says which kernels LibTorch has for a GPU; for
  /// other vendors' GPUs that of Ampere, whose kinds of kernels they have. 0: no GPU.
  int gpu_capability() const { return gpu_capability_; }
  DeviceMemory& memory() { return memory_; }
  Recorder* recorder() const { return recorder_; }

  /// What goes wrong on it, until detach() or reset(); null: nothing. It outlives the run.
  void set_faults(FaultSites* faults);
  FaultSites* faults() const { return faults_; }

  // Tensors without values.

  bool computes_shapes() const { return memory_.computes_shapes(); }
  /// What stands for a value that was not computed and that `operation` gives to the host.
  /// Errors: c10::ValueError, if nothing was agreed on, that names operation, rank and step.
  double unknown_value(const std::string& operation) const;
  /// Counts the live host memory of the device's rank, if it is the rank's first device, under
  /// `numerics = shapes`.
  std::atomic<int64_t>& host_use() { return host_use_; }

  // Time.

  int64_t host_ns() const override { return *host_clock_ns_; }
  /// Streams are numbered from 0, the default stream.
  int new_stream();
  int current_stream() const override { return current_stream_; }
  void set_current_stream(int stream) { current_stream_ = stream; }
  int num_streams() const { return static_cast<int>(streams_.size()); }
  /// The time at which all work given to the stream ends.
  int64_t stream_ns(int stream) const override { return streams_[stream].end_ns; }
  /// The same of all streams.
  int64_t busy_until_ns() const override {
    return std::max_element(streams_.begin(), streams_.end())->end_ns;
  }
  /// Work given to the stream from now on begins at that time or later.
  void stream_waits(int stream, int64_t until_ns) {
    if (until_ns > streams_[stream].end_ns) streams_[stream] = {until_ns, /*is_event=*/true};
  }
  /// Makes the host wait for what ends then, and records the wait. A `call`, which must never be
  /// destroyed, is what the program did to wait, and counts even if it finds the device idle.
  void host_waits(int64_t until_ns, const char* call);
  void host_waits(int64_t until_ns) override { host_waits(until_ns, nullptr); }
  /// Lets the host work for so long.
  void host_works(int64_t ns) { *host_clock_ns_ += ns; }
  /// The program waits for all that the device was given: also for collectives whose time is not
  /// known yet, unlike the allocator of its memory, which waits for what is known.
  void synchronize(const char* call = nullptr) {
    if (await_collectives_) await_collectives_();
    host_waits(busy_until_ns(), call);
  }
  /// Sets a function that blocks the rank until the times of its collectives are known.
  void set_await_collectives(std::function<void()> await) { await_collectives_ = std::move(await); }

  /// Issues a kernel on the current stream: the host spends its time, and then the stream.
  void launch(const char* name, const KernelWork& work, const OperatorCall& host = {});
  /// The same for an operator that may be part of the kernel before it (kernel_chain.h).
  void launch_fused(const char* name, Fusion fusion, const std::vector<TensorUse>& uses,
                    KernelWork work, const OperatorCall& host);
  bool fuses_kernels() const {
    return model_.kernels == KernelSet::kTransformerEngine || is_in_compiled_region();
  }
  /// Allocates what a kernel needs while it runs, and releases it.
  void use_scratch(size_t bytes, const char* operation);
  /// What the host spends on an operator without a kernel.
  void pass_view() {
    if (!replays()) host_works(view_ns_);
  }
  /// Whether the host only gives the device a captured step again (graphs=on), which is one launch.
  bool replays() const { return model_.graphs && memory_.step() > 0; }
  /// Whether the host's time depends on more of an operator than on its kernel.
  bool is_measured() const { return kernel_table_ != nullptr; }
  /// Tells the recorder, if there is one, what the device was given and allocated since the last
  /// time: before a step's end, and at the run's.
  void record_work();
  /// The rank has called a collective, and later knows when it ran and on how many
  /// multiprocessors: see CommunicationShare.
  void call_collective() { communication_.call(); }
  void add_finished_collective(int64_t start_ns, int64_t end_ns, int multiprocessors);
  /// Lets the host launch a collective or message.
  void launch_collective();
  /// Called with all work that the device is given, from any rank's thread.
  using WorkObserver = std::function<void(const char* name, int stream, int64_t start_ns,
                                          int64_t end_ns, bool from_operator)>;
  void observe(WorkObserver observer) { observer_ = std::move(observer); }
  const WorkObserver& observer() const { return observer_; }

  /// A transfer to or from the host's memory, page-locked or not, on the current stream.
  void transfer(bool to_host, double bytes, bool is_pinned);
  /// A transfer to another device of the rank over the node's links, on this device's current
  /// stream. As on CUDA the current streams of both wait for each other before and after it, and
  /// the host goes on.
  void transfer_to(SimDevice& target, double bytes);

  /// The default generator; undefined until generator.h makes it.
  at::Generator& generator() { return generator_; }

  /// Whether tasks are kept, for a comparison with other devices; begins with none.
  void record_tasks(bool keeps) {
    keeps_tasks_ = keeps;
    kept_tasks_.clear();
  }
  /// The tasks since the last time that they were taken.
  std::vector<DeviceTask> take_recorded_tasks() { return std::exchange(kept_tasks_, {}); }

  // Detectors.

  const std::vector<InFlight>& in_flight() const { return in_flight_; }
  void add_in_flight(InFlight memory) { in_flight_.push_back(std::move(memory)); }
  /// Frees the memory that `owner` has in flight.
  void free_in_flight(const InFlightOwner* owner);

 private:
  struct Stream {
    int64_t end_ns = 0;     // of the work given to it, or of what it waits for
    bool is_event = false;  // it waits for other work

    auto operator<=>(const Stream&) const = default;
  };

  explicit SimDevice(int number) : number_(number) {}

  // The recorder's number of a name.
  uint32_t number_of(const char* name);
  double recomputed_flops(const KernelWork& work) const;
  // How long a kernel takes beside the collectives of which the rank knows, which would take
  // `duration_ns` alone and is launched when the host has spent `host_ns`.
  int64_t beside_collectives(const KernelTime& time, int64_t duration_ns, int64_t host_ns);
  int64_t host_cost(const OperatorCall& host);
  // The current stream's last task moves these bytes.
  void record_link(LinkKind kind, double bytes, int64_t duration_ns);
  // The host spends `host_ns` before.
  void run_on_stream(const char* name, SliceKind kind, int64_t host_ns, int64_t duration_ns,
                     double flops, double bytes, double recomputed_flops = 0);

  const int number_;
  int rank_ = 0;
  int index_ = 0;
  uint8_t ordinal_ = 0;
  std::string name_;
  DeviceModel model_;
  const KernelTable* kernel_table_ = nullptr;  // null: ideal
  int64_t view_ns_ = 0;
  int gpu_capability_ = 0;
  CommunicationShare communication_;
  KernelChain chain_;
  int chain_stream_ = 0;
  int64_t chain_end_ns_ = 0;   // of its stream, when its last part was given to it
  int64_t chain_ns_ = 0;       // that it takes
  int64_t replayed_step_ = 0;  // for which the host has spent a launch
  int64_t launches_ = 0;       // these and the blocks: since the recorder was told
  AllocationCount told_blocks_;
  LinkModel link_;  // to the other devices of its node
  DeviceMemory memory_{this};
  at::Generator generator_;
  Recorder* recorder_ = nullptr;
  FaultSites* faults_ = nullptr;
  UnknownValue unknown_value_;
  std::atomic<int64_t> host_use_ = 0;
  WorkObserver observer_;
  std::function<void()> await_collectives_;
  int64_t* host_clock_ns_ = &no_clock_;
  int64_t no_clock_ = 0;
  std::vector<Stream> streams_;
  int current_stream_ = 0;
  bool keeps_tasks_ = false;
  std::vector<DeviceTask> kept_tasks_;
  std::vector<InFlight> in_flight_;
  // The recorder's number of each name, by the name's address: names are never destroyed.
  std::unordered_map<const char*, uint32_t> names_;
};

/// A rank and its node's devices, which are none if the cluster models no hardware.
struct RankPlace {
  int rank = -1;  ///< -1: none
  /// By index; null for the devices of folded ranks.
  absl::Span<SimDevice* const> node_devices;
  int first_device = 0;  ///< the index of the rank's first device on the node
  int num_devices = 0;   ///< of the rank
};

/// Makes the thread a rank's for a scope, and the rank's first device the current one.
class RankScope {
 public:
  /// The devices outlive the scope.
  explicit RankScope(const RankPlace& place);
  ~RankScope();
  RankScope(const RankScope&) = delete;
  RankScope& operator=(const RankScope&) = delete;

 private:
  const RankPlace previous_place_;
  const int previous_device_;
};

/// The rank that this thread belongs to, or -1.
int current_rank();
/// The devices of this thread's rank.
absl::Span<SimDevice* const> own_devices();
/// Whether sim:INDEX is one of them; true on threads that belong to no rank.
bool owns_device(int index);
/// The devices of the node of this thread's rank; on other threads all that LibTorch can count.
int num_node_devices();

/// The index of this thread's current device, as DeviceGuard sets it.
int current_device();
void set_current_device(int index);

/// SimDevice::of for a use that only the device's own rank may make; `what` is the use, as in
/// "allocates on". Errors: c10::Error that names both ranks; those of SimDevice::of.
SimDevice& own_device(int index, const char* what);

/// Allocates on the current device.
c10::Allocator& device_allocator();
/// Allocates pinned host memory, from which copies to a device are asynchronous.
c10::Allocator& pinned_allocator();
bool is_pinned(const void* data);

/// The data of a block from DeviceMemory, which it owns; none for a null handle.
c10::DataPtr block_data(void* handle, c10::Device device,
                        c10::DeleterFnPtr release = &DeviceMemory::release);

/// The block of a device's or the host's memory from these allocators; null for other memory.
inline MemoryBlock* block_of(const c10::DataPtr& data) {
  if (data.get() == nullptr || data.get_deleter() != &DeviceMemory::release) return nullptr;
  return MemoryBlock::of(data.get_context());
}

/// The block of the tensor's storage; null where it has none that is charged to a device.
MemoryBlock* charged_block_of(const at::Tensor& tensor);

/// Replaces LibTorch's CPU allocator for the rest of the process.
void install_host_allocator();

/// While it lives, this thread runs `operation`, which allocates what devices allocate meanwhile;
/// memory of the host is for a kernel of `device`, or the program's own if that is null.
class KernelScope {
 public:
  KernelScope(SimDevice* device, const char* operation)
      : previous_device_(std::exchange(device_, device)),
        previous_operation_(std::exchange(operation_, operation)) {}
  ~KernelScope() {
    device_ = previous_device_;
    operation_ = previous_operation_;
  }
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;

  /// Those of the innermost scope; null in none.
  static SimDevice* device() { return device_; }
  static const char* operation() { return operation_; }

 private:
  inline static thread_local SimDevice* device_ = nullptr;
  inline static thread_local const char* operation_ = nullptr;

  SimDevice* const previous_device_;
  const char* const previous_operation_;
};

}  // namespace accelerate::simulator
