/// The memory of one simulated device: its capacity, its blocks, and what they are used for.
///
/// Blocks lie in the host's memory behind a header that names their device, so that a pointer is
/// enough to release one. Sizes are rounded up to 512 bytes, as in CUDA's caching allocator, and
/// accounting is exact to the block.
///
/// A block's category depends on when it is allocated: in a backward pass, with gradients enabled
/// (a forward pass), or without. Parameters, their gradients and communication buckets are
/// recognised later: see `mark`.
///
/// Threads: any thread may release; allocation belongs to the thread that holds the baton.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "absl/functional/function_ref.h"
#include "simulator/trace/trace.h"

namespace accelerate::simulator {

class DeviceMemory;
class SimDevice;

/// What a device has allocated since the start of the run, whether it is released or not.
struct AllocationCount {
  int64_t blocks = 0;
  int64_t bytes = 0;

  bool operator==(const AllocationCount&) const = default;
};

/// The header in front of a block's bytes.
struct alignas(64) MemoryBlock {
  DeviceMemory* memory;  ///< null: uncharged host memory, or a block of an earlier run
  MemoryBlock* older;    ///< live blocks of `memory`, newest first
  MemoryBlock* newer;
  size_t bytes;           ///< rounded
  const char* operation;  ///< the operator that allocated it, or null
  int64_t step;
  MemoryCategory category;
  bool pinned;

  void* data() { return this + 1; }
};

class DeviceMemory {
 public:
  using Bytes = std::array<int64_t, kNumMemoryCategories>;
  /// Called after each change with the category and its change in bytes.
  using Observer = std::function<void(MemoryCategory, int64_t delta)>;

  /// `device` is the device that has this memory; null in tests of the memory alone.
  explicit DeviceMemory(const SimDevice* device = nullptr) : device_(device) {}
  /// The device that the blocks belong to, whatever tensors use them.
  const SimDevice* device() const { return device_; }

  /// Begins a run: blocks of earlier runs no longer count.
  void reset(std::string name, int64_t capacity_bytes, Observer observer);
  /// Stops observing; accounting goes on.
  void detach() { observer_ = nullptr; }

  /// A new block's bytes, charged to this device. `operation` is the allocating operator, and must
  /// never be destroyed; null: the program itself asked for the memory.
  /// Errors: c10::OutOfMemoryError with report().
  void* allocate(size_t bytes, const char* operation);
  /// A block that is charged to no device.
  static void* allocate_uncharged(size_t bytes);
  /// Releases a block of either kind. Null is allowed.
  static void release(void* data);

  /// Sets a block's category; no effect on null and on blocks of other devices or earlier runs.
  void mark(MemoryBlock* block, MemoryCategory category);

  // Events of the training loop that categories depend on.

  void begin_backward();
  void end_backward() { in_backward_ = false; }
  bool in_backward() const { return in_backward_; }
  /// A parameter changes while gradients are disabled, so the optimizer is stepping.
  void note_update() { updated_ = had_backward_; }
  /// An operator runs with gradients enabled. After a backward pass and an update this begins the
  /// next step, and the blocks that the update left behind are the optimizer's state.
  /// Returns whether a step began.
  bool note_forward() {
    if (!updated_) return false;
    begin_step();
    return true;
  }
  /// The number of updates so far.
  int64_t step() const { return step_; }

  int64_t capacity() const { return capacity_; }
  int64_t in_use() const { return in_use_; }
  int64_t peak() const { return peak_; }
  const Bytes& by_category() const { return by_category_; }
  int64_t num_blocks() const { return num_blocks_; }
  const AllocationCount& allocated() const { return allocated_; }

  /// A line for each category: its bytes, and its largest blocks with the allocating operators.
  std::string holders() const;

 private:
  void begin_step();
  MemoryCategory category_now(const char* operation) const;
  void account(MemoryCategory category, int64_t delta);
  [[noreturn]] void raise_out_of_memory(size_t bytes, const char* operation) const;

  const SimDevice* const device_;
  mutable std::mutex mutex_;
  std::string name_;
  Observer observer_;
  int64_t capacity_ = 0;
  int64_t in_use_ = 0;
  int64_t peak_ = 0;
  int64_t num_blocks_ = 0;
  AllocationCount allocated_;
  Bytes by_category_ = {};
  MemoryBlock* newest_ = nullptr;
  bool set_up_ = false;        // a backward pass was seen
  bool had_backward_ = false;  // in this step
  bool in_backward_ = false;
  bool updated_ = false;
  int64_t step_ = 0;
};

}  // namespace accelerate::simulator
