#include "simulator/device/device_memory.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <new>
#include <utility>
#include <vector>

#include <c10/core/Allocator.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/number_text.h"
#include "simulator/device/sim_device.h"

namespace accelerate::simulator {
namespace {

constexpr size_t kGranularity = 512;
constexpr size_t kLargestHolders = 3;

// Under `numerics = shapes`, the largest block that a kernel on the host may fill. Such a kernel
// has small arguments, so this bounds its work: it is larger than what small arguments usually
// give, and what a kernel needs meanwhile.
constexpr size_t kLargestForKernel = size_t{64} << 20;

MemoryBlock* make_block(size_t bytes, bool hollow = false) {
  void* memory =
      std::aligned_alloc(alignof(MemoryBlock), sizeof(MemoryBlock) + (hollow ? 0 : bytes));
  if (memory == nullptr) throw std::bad_alloc();
  return new (memory)
      MemoryBlock{.bytes = bytes, .contents = hollow ? Contents::kHollow : Contents::kValues};
}

// Reports to this thread's profiler, if any. `memory` is null for the host's.
void report_to_profiler(void* data, size_t bytes, bool comes, const DeviceMemory* memory) {
  if (c10::memoryProfilingEnabled()) {
    const auto size = static_cast<int64_t>(bytes);
    const c10::Device device =
        memory != nullptr ? torch_device(memory->device()->index()) : c10::Device(c10::kCPU);
    c10::reportMemoryUsageToProfiler(data, comes ? size : -size, 0, 0, device);
  }
}

size_t rounded(size_t bytes) { return (bytes + kGranularity - 1) / kGranularity * kGranularity; }

}  // namespace

void DeviceMemory::reset(std::string name, int64_t capacity_bytes, Observer observer) {
  std::lock_guard<std::mutex> lock(mutex_);
  // The program may still hold blocks of the last run, which must not reach into the list.
  for (MemoryBlock* block = newest_; block != nullptr; block = block->older) {
    block->memory = nullptr;
  }
  newest_ = nullptr;
  name_ = std::move(name);
  observer_ = std::move(observer);
  capacity_ = capacity_bytes;
  in_use_ = peak_ = num_blocks_ = 0;
  by_category_ = {};
  allocated_ = {};
  set_up_ = had_backward_ = in_backward_ = updated_ = false;
  step_ = 0;
  addresses_.reset();
}

void DeviceMemory::compute_shapes(size_t largest_real) {
  std::lock_guard<std::mutex> lock(mutex_);
  largest_real_ = largest_real;
  addresses_.emplace(capacity_);
}

MemoryCategory DeviceMemory::category_now(const char* operation) const {
  if (in_backward_) return MemoryCategory::kTemporaries;
  // Inputs are allocated with the activations.
  if (c10::GradMode::is_enabled()) return MemoryCategory::kActivations;
  // Modules move to their device without gradients.
  if (!set_up_) return MemoryCategory::kParameters;
  // In the first update memory that is not an operator's result is the optimizer's moments.
  const bool first_update = step_ == 0 && operation == nullptr;
  return first_update ? MemoryCategory::kOptimizerState : MemoryCategory::kTemporaries;
}

void DeviceMemory::account(MemoryCategory category, int64_t delta) {
  by_category_[static_cast<size_t>(category)] += delta;
  in_use_ += delta;
  peak_ = std::max(peak_, in_use_);
  if (observer_) observer_(category, delta);
}

MemoryBlock* DeviceMemory::charge(MemoryBlock* block, size_t bytes, const char* operation,
                                  bool hollow) {
  const size_t size = rounded(bytes);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (in_use_ + static_cast<int64_t>(size) > capacity_) raise_out_of_memory(bytes, operation);
    char* const address = addresses_ ? addresses_->allocate(static_cast<int64_t>(size)) : nullptr;
    if (block == nullptr) block = make_block(size, hollow);
    block->memory = this;
    block->bytes = size;
    block->operation = operation;
    block->address = address;
    block->step = step_;
    block->category = category_now(operation);
    block->older = newest_;
    if (newest_ != nullptr) newest_->newer = block;
    newest_ = block;
    ++num_blocks_;
    ++allocated_.blocks;
    allocated_.bytes += static_cast<int64_t>(size);
    account(block->category, static_cast<int64_t>(size));
  }
  report_to_profiler(block->data(), size, /*comes=*/true, this);
  return block;
}

void* DeviceMemory::allocate(size_t bytes, const char* operation) {
  if (bytes == 0) return nullptr;
  return charge(nullptr, bytes, operation, is_to_be_hollow(bytes))->handle();
}

void* DeviceMemory::allocate_for_kernel(size_t bytes, const char* operation) {
  if (computes_shapes() && bytes > kLargestForKernel) {
    throw KernelTooLarge({__func__, __FILE__, __LINE__},
                         absl::StrCat(name_, " computes shapes only, but ",
                                      operation != nullptr ? operation : "the program",
                                      " computes ", binary_byte_text(static_cast<int64_t>(bytes)),
                                      " of values for it on the host"));
  }
  // Most of what kernels allocate are results, and such a one cannot fit: the host need not compute
  // it.
  if (static_cast<int64_t>(bytes) > capacity_) {
    std::lock_guard<std::mutex> lock(mutex_);
    raise_out_of_memory(bytes, operation);
  }
  return allocate_uncharged(bytes);
}

void* DeviceMemory::adopt(void* handle, const char* operation) {
  if (handle == nullptr) return nullptr;
  MemoryBlock* block = MemoryBlock::of(handle);
  if (block->memory != nullptr) return handle;
  const size_t bytes = block->bytes;
  if (is_to_be_hollow(bytes)) {
    void* hollow = allocate(bytes, operation);
    release(handle);
    return hollow;
  }
  charge(block, bytes, operation, /*hollow=*/false);
  report_to_profiler(handle, bytes, /*comes=*/false, nullptr);
  if (block->host_use != nullptr) {
    *std::exchange(block->host_use, nullptr) -= static_cast<int64_t>(bytes);
  }
  return handle;
}

void* DeviceMemory::allocate_uncharged(size_t bytes, std::atomic<int64_t>* host_use) {
  if (bytes == 0) return nullptr;
  // Rounded for alignment only.
  MemoryBlock* block = make_block((bytes + 63) / 64 * 64);
  if (host_use != nullptr) {
    block->host_use = host_use;
    *host_use += static_cast<int64_t>(block->bytes);
  }
  report_to_profiler(block->data(), block->bytes, /*comes=*/true, nullptr);
  return block->handle();
}

void DeviceMemory::release(void* handle) {
  if (handle == nullptr) return;
  MemoryBlock* block = MemoryBlock::of(handle);
  report_to_profiler(block->data(), block->bytes, /*comes=*/false, block->memory);
  if (block->host_use != nullptr) *block->host_use -= static_cast<int64_t>(block->bytes);
  if (DeviceMemory* memory = block->memory) {
    std::lock_guard<std::mutex> lock(memory->mutex_);
    // Checked again, because reset() may have detached the block meanwhile.
    if (block->memory != nullptr) {
      (block->newer != nullptr ? block->newer->older : memory->newest_) = block->older;
      if (block->older != nullptr) block->older->newer = block->newer;
      --memory->num_blocks_;
      if (block->address != nullptr) memory->addresses_->release(block->address);
      memory->account(block->category, -static_cast<int64_t>(block->bytes));
    }
  }
  std::free(block);
}

void DeviceMemory::mark(MemoryBlock* block, MemoryCategory category) {
  if (block == nullptr || block->memory != this || block->is_noted) return;
  set_category(block, category);
}

void DeviceMemory::note(MemoryBlock* block, MemoryCategory category) {
  if (block == nullptr || block->memory != this) return;
  block->is_noted = true;
  set_category(block, category);
}

void DeviceMemory::set_category(MemoryBlock* block, MemoryCategory category) {
  if (block->category == category) return;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto bytes = static_cast<int64_t>(block->bytes);
  // Not through account(): the total and its peak do not change.
  by_category_[static_cast<size_t>(block->category)] -= bytes;
  by_category_[static_cast<size_t>(category)] += bytes;
  if (observer_) {
    observer_(block->category, -bytes);
    observer_(category, bytes);
  }
  block->category = category;
}

void DeviceMemory::begin_backward() {
  set_up_ = true;
  had_backward_ = true;
  in_backward_ = true;
}

void DeviceMemory::begin_step() {
  updated_ = false;
  had_backward_ = false;
  // Newest first, down to the end of the previous step.
  for (MemoryBlock* block = newest_; block != nullptr && block->step == step_;
       block = block->older) {
    if (block->category == MemoryCategory::kTemporaries) {
      mark(block, MemoryCategory::kOptimizerState);
    }
  }
  ++step_;
}

std::string DeviceMemory::holders() const {
  std::array<std::vector<const MemoryBlock*>, kNumMemoryCategories> blocks;
  for (const MemoryBlock* block = newest_; block != nullptr; block = block->older) {
    blocks[static_cast<size_t>(block->category)].push_back(block);
  }
  std::vector<size_t> order(kNumMemoryCategories);
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return by_category_[a] > by_category_[b]; });
  std::string text;
  for (size_t category : order) {
    auto& held = blocks[category];
    if (held.empty()) continue;
    // Newest first among equals, so that the order does not depend on addresses.
    std::stable_sort(held.begin(), held.end(), [](const MemoryBlock* a, const MemoryBlock* b) {
      return a->bytes > b->bytes;
    });
    std::vector<std::string> largest;
    for (size_t i = 0; i < std::min(held.size(), kLargestHolders); ++i) {
      largest.push_back(
          absl::StrCat(binary_byte_text(static_cast<int64_t>(held[i]->bytes)), " by ",
                       held[i]->operation != nullptr ? held[i]->operation : "the program",
                       " in step ", held[i]->step));
    }
    absl::StrAppend(
        &text, text.empty() ? "" : "\n", "  ", to_string(static_cast<MemoryCategory>(category)),
        ": ", binary_byte_text(by_category_[category]), " in ", held.size(),
        held.size() == 1 ? " block (" : " blocks (largest: ", absl::StrJoin(largest, ", "), ")");
  }
  return text;
}

void DeviceMemory::raise_out_of_memory(size_t bytes, const char* operation) const {
  const std::string text = holders();
  TORCH_CHECK_WITH(OutOfMemoryError, false, name_,
                   " is out of memory: ", operation != nullptr ? operation : "the program",
                   " asked for ", binary_byte_text(static_cast<int64_t>(bytes)), " in step ", step_,
                   ", ", binary_byte_text(capacity_ - in_use_), " of ", binary_byte_text(capacity_),
                   " are free", text.empty() ? "" : ". Held:\n", text);
}

}  // namespace accelerate::simulator
