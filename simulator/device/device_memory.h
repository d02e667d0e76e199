/// The memory of one simulated device: its capacity, its blocks, and what they are used for.
///
/// Blocks lie in the host's memory behind a header that names their device, so that a pointer is
/// enough to release one. Sizes are rounded up to 512 bytes, as in CUDA's caching allocator, and
/// accounting is exact to the block.
///
/// Under `efficiency = measured` a model of the driver decides what fits (model_driver): blocks are
/// placed by a caching allocator, whose segments share the device with the process's context, the
/// buffers of communicators and the workspaces of matrix products. Otherwise all blocks fit as long
/// as their sum does.
///
/// Under `numerics = shapes` large blocks are hollow: their header is all that the host stores, and
/// their addresses allow no access. They are charged, marked and released like all others.
///
/// What a kernel on the host allocates is charged when it becomes the device's, as a result: the
/// kernel is the CPU's, and what it needs meanwhile says nothing about the device.
///
/// A block's category depends on when it is charged: in a backward pass, with gradients enabled
/// (a forward pass), or without. Parameters, their gradients and communication buckets are
/// recognised later: see `mark`; and so are activations that a torch::autograd::Function makes, in
/// which gradients are disabled: at the first use of its result, which has a history. What the
/// program says of a block counts more: see `note`.
///
/// A block's module is that of the parameter it belongs to, if the program names that
/// (accelerate/runtime/shared_objects.h). All other blocks are for the module whose parameter an
/// operator used last in the same pass: activations and what a backward pass makes; in an update,
/// optimizer state, for the parameter that is written next, or that is at the same place in lists.
///
/// Threads: any thread may release; allocation belongs to the thread that holds the baton.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include "simulator/device/caching_allocator.h"
#include "simulator/hardware/cluster_spec.h"
#include "simulator/hardware/driver_memory.h"
#include "simulator/trace/trace.h"

namespace accelerate::simulator {

class DeviceMemory;
class SimDevice;

/// A device as LibTorch names it on the device's node.
inline c10::Device torch_device(int index) {
  return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index)};
}

/// What a device has allocated since the start of the run, whether it is released or not.
struct AllocationCount {
  int64_t blocks = 0;
  int64_t bytes = 0;

  bool operator==(const AllocationCount&) const = default;
};

/// What a block's bytes are.
enum class Contents : uint8_t {
  kValues,   ///< what the program computed
  kUnknown,  ///< values that depend on a hollow block's, so they were not computed
  kHollow,   ///< none: the block has no bytes
};

/// The header in front of a block's bytes. Its end identifies the block: allocators return it, and
/// it is the context of a block's c10::DataPtr.
struct alignas(64) MemoryBlock {
  DeviceMemory* memory;  ///< null: uncharged host memory, or a block of an earlier run
  MemoryBlock* older;    ///< live blocks of `memory`, newest first
  MemoryBlock* newer;
  size_t bytes;           ///< rounded
  const char* operation;  ///< the operator that allocated it, or null
  char* address;          ///< of a hollow block
  union {
    CachingAllocator::Block* place;  ///< charged: where the allocator put it, if one is modelled
    std::atomic<int64_t>* host_use;  ///< uncharged: the sum that counts it, or null
  };
  int32_t step;
  uint16_t module;  ///< the number of the module that it is for, in DeviceMemory::modules()
  MemoryCategory category;
  Contents contents : 6;
  bool is_noted : 1;  ///< the program said what it is for
  bool is_named : 1;  ///< the program said which module's it is

  void* handle() { return this + 1; }
  /// The address of the bytes.
  void* data() { return contents == Contents::kHollow ? static_cast<void*>(address) : handle(); }

  /// The block of a handle that is not null.
  static MemoryBlock* of(void* handle) { return static_cast<MemoryBlock*>(handle) - 1; }
};
static_assert(sizeof(MemoryBlock) == 64);

/// A block that a kernel on the host asks for is so large that under `numerics = shapes` the kernel
/// is not to run.
class KernelTooLarge : public c10::Error {
  using c10::Error::Error;
};

/// How a device's memory is divided, as the driver and torch.cuda.memory_stats tell.
struct DriverFigures {
  int64_t visible = 0;     ///< the total that the driver shows
  int64_t context = 0;     ///< of the process
  int64_t libraries = 0;   ///< buffers of communicators
  int64_t workspaces = 0;  ///< of matrix products; part of `allocator.allocated`
  int64_t inactive_split = 0;
  /// The highest of what is not free.
  int64_t used_peak = 0;
  CachingAllocator::Figures allocator;

  /// What a library or a new segment can have.
  int64_t free() const { return visible - context - libraries - allocator.reserved; }
};

class DeviceMemory {
 public:
  using Bytes = std::array<int64_t, kNumMemoryCategories>;
  /// Called after each change with the category, the module, and the change in bytes.
  using Observer = std::function<void(MemoryCategory, uint32_t module, int64_t delta)>;

  /// `device` is the device that has this memory; null in tests of the memory alone.
  explicit DeviceMemory(const SimDevice* device = nullptr) : device_(device) {}
  /// The device that the blocks belong to, whatever tensors use them.
  const SimDevice* device() const { return device_; }
  /// That device's index on its node, for profilers. 0 until the device says otherwise.
  void set_index(int index) { index_ = index; }
  int index() const { return index_; }

  /// Begins a run: blocks of earlier runs no longer count.
  void reset(std::string name, int64_t capacity_bytes, Observer observer);
  /// From now on, until reset(), new blocks of more than `largest_real` bytes are hollow.
  void compute_shapes(size_t largest_real);
  bool computes_shapes() const { return largest_real_.has_value(); }
  /// From now on, until reset(), the driver's model decides what fits. The run has no blocks yet.
  /// `driver` outlives the run.
  void model_driver(const DriverMemory& constants, const DeviceModel& model,
                    CachingAllocator::Driver& driver);
  /// Stops observing and watching; accounting goes on.
  void detach() {
    observer_ = nullptr;
    watch_ = {};
  }

  /// What is called before memory is charged and before a block is released, until detach() or
  /// reset(). The former, if it returns true, makes the allocation fail as if memory were short.
  struct Watch {
    std::function<bool(const char* operation)> allocating = nullptr;
    std::function<void()> releasing = nullptr;
  };
  void set_watch(Watch watch) { watch_ = std::move(watch); }
  /// From now on, until reset(), the device has so many bytes less, but no less than 0.
  void shrink(int64_t bytes);

  /// A new block's handle, charged to this device; null for no bytes. `operation` is the allocating
  /// operator, and must never be destroyed; null: the program itself asked for the memory.
  /// Errors: c10::OutOfMemoryError with holders().
  void* allocate(size_t bytes, const char* operation);
  /// A block for a kernel on the host, which needs the bytes: not charged, and never hollow, until
  /// charge_result(). Errors: c10::OutOfMemoryError for more than the device's capacity;
  /// KernelTooLarge.
  void* allocate_for_kernel(size_t bytes, const char* operation);
  /// After the kernel: makes an uncharged block one of this device, and gives up the bytes of one
  /// that is to be hollow. Returns its new handle; that of a charged block is the old one.
  /// Errors: as allocate(); the block is as before.
  void* charge_result(void* handle, const char* operation);
  /// A block that is charged to no device; `host_use`, if any, counts its bytes as long as it
  /// lives.
  static void* allocate_uncharged(size_t bytes, std::atomic<int64_t>* host_use = nullptr);
  /// Releases a block of any kind. Null is allowed.
  static void release(void* handle);

  /// The live block that has the byte at an address of the host; null if there is none, and for
  /// hollow blocks (AddressRange::contains). Takes a time that grows with the number of blocks.
  MemoryBlock* find(const void* address);

  // With a model of the driver; without one these have no effect.

  /// Another stream uses the block, which is reused only once that stream has passed the point at
  /// which the block is released. No effect on null, on blocks of other devices or earlier runs.
  void record_stream(MemoryBlock* block, int stream);
  /// A matrix product is about to run on the current stream: the first on a stream, and the first
  /// of a backward pass, whose thread has a handle of its own, allocates a workspace.
  /// Errors: c10::OutOfMemoryError.
  void prepare_product();
  /// A library takes memory past the allocator until reset(); `user` names it in errors.
  /// Errors: c10::OutOfMemoryError; the allocator's cache does not make room, as on CUDA.
  void allocate_for_library(int64_t bytes, std::string user);
  /// Gives back segments without blocks.
  void empty_cache();
  std::optional<DriverFigures> driver_figures() const;

  /// Sets a block's category as it is recognised; no effect on null, on blocks of other devices or
  /// earlier runs, and on those with a note.
  void set_observed_category(MemoryBlock* block, MemoryCategory category);
  /// The same as the program says, until it says otherwise or releases the block.
  void set_declared_category(MemoryBlock* block, MemoryCategory category);

  /// The block belongs to a parameter or buffer of that name. No effect as set_observed_category().
  void name(MemoryBlock* block, std::string_view name);
  /// The block belongs to the same module as another one.
  void name_like(MemoryBlock* block, const MemoryBlock& other) {
    if (block->memory == this) regroup(block, block->category, other.module);
  }
  /// The paths of the modules, by number; 0 is none.
  const std::vector<std::string>& modules() const { return modules_; }
  /// An operator uses a block that belongs to a parameter, if it does.
  void on_use(const MemoryBlock& block, bool writes) {
    // Before the first backward pass parameters may count as activations.
    if (block.is_named && (block.category <= MemoryCategory::kGatheredParameters ||
                           block.category == MemoryCategory::kActivations)) {
      use_parameter(block.module, writes);
    }
  }

  /// Whether the block was charged without gradients, outside of backward passes, for what is not
  /// known yet. A use of it as a tensor with a history tells: see on_computed().
  bool is_guess(const MemoryBlock& block) const {
    return !in_backward_ && !block.is_noted && !block.is_named &&
           (block.category == MemoryCategory::kTemporaries ||
            (block.category == MemoryCategory::kParameters && !set_up_));
  }
  /// A block for which is_guess() is true is a result with a history: a torch::autograd::Function
  /// made it. It is an activation, and so is what was charged in a row with it.
  void on_computed(MemoryBlock* result);

  // Events of the training loop that categories depend on.

  void begin_backward();
  void end_backward() {
    in_backward_ = false;
    module_ = 0;
    updated_until_ = newest_;
  }
  bool in_backward() const { return in_backward_; }
  /// The module whose parameter an operator used last in this pass; 0: none.
  uint16_t module() const { return module_; }
  /// A parameter changes while gradients are disabled, so the optimizer is stepping.
  void on_update() { updated_ = had_backward_; }
  /// An operator runs with gradients enabled. After a backward pass and an update this begins the
  /// next step, and the blocks that the update left behind are the optimizer's state.
  /// Returns whether a step began.
  bool on_forward() {
    if (!updated_) return false;
    begin_step();
    return true;
  }
  /// The number of updates before the step that goes on.
  int64_t step() const { return step_; }
  /// The number of updates so far.
  int64_t updates() const { return step_ + (updated_ ? 1 : 0); }

  /// All of the device's memory, whatever uses it.
  int64_t capacity() const { return capacity_; }
  int64_t in_use() const { return in_use_; }
  int64_t peak() const { return peak_; }
  const Bytes& by_category() const { return by_category_; }
  int64_t num_blocks() const { return num_blocks_; }
  /// Null unless shapes only or with a model of the driver.
  const CachingAllocator* allocator() const { return allocator_ ? &*allocator_ : nullptr; }
  const AllocationCount& allocated() const { return allocated_; }
  /// The same by the operator that asked, while the run is observed; null: the program itself.
  const std::unordered_map<const char*, AllocationCount>& allocated_by() const {
    return allocated_by_;
  }

  /// A line for each category: its bytes, and its largest blocks with the allocating operators.
  std::string holders() const;

 private:
  void regroup(MemoryBlock* block, MemoryCategory category, uint16_t module);
  void use_parameter(uint16_t module, bool writes);
  // The largest modules.
  std::string module_text() const;
  bool is_to_be_hollow(size_t bytes) const { return largest_real_ && bytes > *largest_real_; }
  void begin_step();
  // `block`: that of so many bytes; null: a new one.
  MemoryBlock* charge(MemoryBlock* block, size_t bytes, const char* operation, bool hollow);
  MemoryCategory category_now(const char* operation) const;
  void account(const MemoryBlock& block, int64_t delta);
  // `asked`: what errors name.
  CachingAllocator::Block* place(int64_t bytes, size_t asked, const char* operation);
  void update_used_peak();
  DriverFigures figures() const;
  // What a process can have for its tensors.
  int64_t usable() const;
  [[noreturn]] void raise_out_of_memory(size_t bytes, const char* operation,
                                        bool for_library = false) const;
  std::string driver_text(int64_t bytes, bool for_library) const;

  const SimDevice* const device_;
  int index_ = 0;
  mutable std::mutex mutex_;
  std::string name_;
  Observer observer_;
  Watch watch_;
  int64_t capacity_ = 0;
  int64_t in_use_ = 0;
  int64_t peak_ = 0;
  int64_t num_blocks_ = 0;
  AllocationCount allocated_;
  std::unordered_map<const char*, AllocationCount> allocated_by_;
  Bytes by_category_ = {};
  MemoryBlock* newest_ = nullptr;
  std::vector<std::string> modules_ = {""};
  std::map<std::string, uint16_t, std::less<>> module_numbers_;
  uint16_t module_ = 0;  // whose parameter was used last in this pass
  // The newest block at the end of the backward pass, or when an update last wrote a parameter.
  const MemoryBlock* updated_until_ = nullptr;
  bool set_up_ = false;        // a backward pass was seen
  bool had_backward_ = false;  // in this step
  bool in_backward_ = false;
  bool updated_ = false;
  int32_t step_ = 0;
  std::optional<size_t> largest_real_;          // shapes only
  std::optional<CachingAllocator> allocator_;   // shapes only, or with a model of the driver
  std::optional<DriverMemory> driver_memory_;   // the model
  CachingAllocator::Driver* driver_ = nullptr;  // with a model
  std::vector<std::pair<std::string, int64_t>> libraries_;
  int64_t library_bytes_ = 0;
  int64_t used_peak_ = 0;
  // By whether they are a backward pass's, and the stream.
  std::vector<std::pair<bool, int>> workspaces_;
};

}  // namespace accelerate::simulator
