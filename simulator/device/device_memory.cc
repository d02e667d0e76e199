#include "simulator/device/device_memory.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <limits>
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

namespace accelerate::simulator {
namespace {

constexpr size_t kGranularity = 512;
constexpr size_t kLargestHolders = 3;
constexpr size_t kLargestModules = 6;

// Under `numerics = shapes`, the largest block that a kernel on the host may fill. Such a kernel
// has small arguments, so this bounds its work: it is larger than what small arguments usually
// give, and what a kernel needs meanwhile.
constexpr size_t kLargestForKernel = size_t{64} << 20;

MemoryBlock* make_block(size_t bytes, bool hollow = false) {
  void* memory =
      std::aligned_alloc(alignof(MemoryBlock), sizeof(MemoryBlock) + (hollow ? 0 : bytes));
  if (memory == nullptr) throw std::bad_alloc();
  auto* const block = new (memory) MemoryBlock{};
  block->bytes = bytes;
  block->contents = hollow ? Contents::kHollow : Contents::kValues;
  return block;
}

// Reports to this thread's profiler, if any. `memory` is null for the host's.
void report_to_profiler(void* data, size_t bytes, bool comes, const DeviceMemory* memory) {
  if (c10::memoryProfilingEnabled()) {
    const auto size = static_cast<int64_t>(bytes);
    const c10::Device device =
        memory != nullptr ? torch_device(memory->index()) : c10::Device(c10::kCPU);
    c10::reportMemoryUsageToProfiler(data, comes ? size : -size, 0, 0, device);
  }
}

size_t rounded(size_t bytes) { return (bytes + kGranularity - 1) / kGranularity * kGranularity; }

}  // namespace

void DeviceMemory::reset(std::string name, int64_t capacity_bytes, Observer observer) {
  std::lock_guard<std::mutex> lock(mutex_);
  // The program may still hold blocks of the last run, which must not reach into the list.
  for (MemoryBlock* block = newest_; block != nullptr; block = block->older) {
    block->host_use = nullptr;
    block->memory = nullptr;
  }
  newest_ = nullptr;
  modules_ = {""};
  module_numbers_.clear();
  module_ = 0;
  updated_until_ = nullptr;
  name_ = std::move(name);
  observer_ = std::move(observer);
  capacity_ = capacity_bytes;
  watch_ = {};
  in_use_ = peak_ = num_blocks_ = 0;
  by_category_ = {};
  allocated_ = {};
  allocated_by_.clear();
  set_up_ = had_backward_ = in_backward_ = updated_ = false;
  step_ = 0;
  largest_real_.reset();
  allocator_.reset();
  driver_memory_.reset();
  driver_ = nullptr;
  libraries_.clear();
  library_bytes_ = used_peak_ = 0;
  workspaces_.clear();
}

void DeviceMemory::compute_shapes(size_t largest_real) {
  std::lock_guard<std::mutex> lock(mutex_);
  largest_real_ = largest_real;
  // Only for addresses: their sum decides what fits.
  if (!allocator_) {
    allocator_.emplace(CachingAllocator::Options{.capacity = capacity_, .may_exceed = true},
                       nullptr);
  }
}

void DeviceMemory::model_driver(const DriverMemory& constants, const DeviceModel& model,
                                CachingAllocator::Driver& driver) {
  std::lock_guard<std::mutex> lock(mutex_);
  driver_memory_ = constants;
  driver_ = &driver;
  capacity_ = constants.visible_bytes;
  CachingAllocator::Options options{
      .capacity = usable(),
      .expandable_segments = model.expandable_segments.value_or(false),
      // As LibTorch: an eighth more than the device has, so that pages can move to the end.
      .expandable_bytes = capacity_ + capacity_ / 8,
      .malloc_ns = constants.malloc_ns,
      .free_ns = constants.free_ns,
      .map_ns = constants.map_ns,
      .unmap_ns = constants.unmap_ns};
  if (model.max_split_bytes) options.max_split_bytes = *model.max_split_bytes;
  allocator_.emplace(options, driver_);
}

void DeviceMemory::shrink(int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  capacity_ = std::max<int64_t>(0, capacity_ - bytes);
  if (driver_memory_) allocator_->set_capacity(std::max<int64_t>(0, usable()));
}

int64_t DeviceMemory::usable() const {
  return driver_memory_ ? capacity_ - driver_memory_->context_bytes - library_bytes_ : capacity_;
}

MemoryBlock* DeviceMemory::find(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  std::lock_guard<std::mutex> lock(mutex_);
  for (MemoryBlock* block = newest_; block != nullptr; block = block->older) {
    const auto begin = reinterpret_cast<uintptr_t>(block->handle());
    if (block->contents != Contents::kHollow && begin <= at && at < begin + block->bytes) {
      return block;
    }
  }
  return nullptr;
}

void DeviceMemory::record_stream(MemoryBlock* block, int stream) {
  if (driver_ == nullptr || block == nullptr || block->memory != this) return;
  std::lock_guard<std::mutex> lock(mutex_);
  allocator_->record(block->place, stream);
}

void DeviceMemory::prepare_product() {
  if (driver_ == nullptr) return;
  const std::pair workspace(in_backward_, driver_->current_stream());
  if (std::find(workspaces_.begin(), workspaces_.end(), workspace) != workspaces_.end()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  const int64_t bytes = driver_memory_->product_workspace_bytes;
  place(bytes, static_cast<size_t>(bytes), "a workspace of cuBLAS");
  workspaces_.push_back(workspace);
}

void DeviceMemory::allocate_for_library(int64_t bytes, std::string user) {
  if (driver_ == nullptr || bytes == 0) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (bytes > figures().free()) {
    raise_out_of_memory(static_cast<size_t>(bytes), user.c_str(), /*for_library=*/true);
  }
  libraries_.emplace_back(std::move(user), bytes);
  library_bytes_ += bytes;
  allocator_->set_capacity(usable());
  update_used_peak();
}

void DeviceMemory::empty_cache() {
  if (driver_ == nullptr) return;
  std::lock_guard<std::mutex> lock(mutex_);
  allocator_->empty_cache();
}

DriverFigures DeviceMemory::figures() const {
  return {.visible = capacity_,
          .context = driver_memory_->context_bytes,
          .libraries = library_bytes_,
          .workspaces =
              static_cast<int64_t>(workspaces_.size()) * driver_memory_->product_workspace_bytes,
          .inactive_split = allocator_->inactive_split(),
          .used_peak = used_peak_,
          .allocator = allocator_->figures()};
}

std::optional<DriverFigures> DeviceMemory::driver_figures() const {
  if (driver_ == nullptr) return std::nullopt;
  std::lock_guard<std::mutex> lock(mutex_);
  return figures();
}

// Null without an allocator.
CachingAllocator::Block* DeviceMemory::place(int64_t bytes, size_t asked, const char* operation) {
  if (!driver_memory_ && in_use_ + bytes > capacity_) raise_out_of_memory(asked, operation);
  if (!allocator_) return nullptr;
  CachingAllocator::Block* block =
      allocator_->allocate(bytes, driver_ != nullptr ? driver_->current_stream() : 0);
  if (block == nullptr) raise_out_of_memory(asked, operation);
  update_used_peak();
  return block;
}

// Called where the allocator or a library may have taken more of the device.
void DeviceMemory::update_used_peak() {
  if (!driver_memory_) return;
  const int64_t used =
      driver_memory_->context_bytes + library_bytes_ + allocator_->figures().reserved;
  used_peak_ = std::max(used_peak_, used);
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

void DeviceMemory::account(const MemoryBlock& block, int64_t delta) {
  by_category_[static_cast<size_t>(block.category)] += delta;
  in_use_ += delta;
  peak_ = std::max(peak_, in_use_);
  if (observer_) observer_(block.category, block.module, delta);
}

MemoryBlock* DeviceMemory::charge(MemoryBlock* block, size_t bytes, const char* operation,
                                  bool hollow) {
  if (watch_.allocating && watch_.allocating(operation)) {
    std::lock_guard<std::mutex> lock(mutex_);
    raise_out_of_memory(bytes, operation);
  }
  const size_t size = rounded(bytes);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    CachingAllocator::Block* const at = place(static_cast<int64_t>(size), bytes, operation);
    if (block == nullptr) block = make_block(size, hollow);
    if (hollow) block->address = AddressRange::at(at->offset, at->bytes);
    block->memory = this;
    block->bytes = size;
    block->operation = operation;
    block->place = at;
    block->step = step_;
    block->category = category_now(operation);
    block->module = module_;
    block->older = newest_;
    if (newest_ != nullptr) newest_->newer = block;
    newest_ = block;
    ++num_blocks_;
    ++allocated_.blocks;
    allocated_.bytes += static_cast<int64_t>(size);
    if (observer_) {
      AllocationCount& own = allocated_by_[operation];
      ++own.blocks;
      own.bytes += static_cast<int64_t>(size);
    }
    account(*block, static_cast<int64_t>(size));
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
  if (static_cast<int64_t>(bytes) > usable()) {
    std::lock_guard<std::mutex> lock(mutex_);
    raise_out_of_memory(bytes, operation);
  }
  return allocate_uncharged(bytes);
}

void* DeviceMemory::charge_result(void* handle, const char* operation) {
  if (handle == nullptr) return nullptr;
  MemoryBlock* block = MemoryBlock::of(handle);
  if (block->memory != nullptr) return handle;
  const size_t bytes = block->bytes;
  if (is_to_be_hollow(bytes)) {
    void* hollow = allocate(bytes, operation);
    release(handle);
    return hollow;
  }
  std::atomic<int64_t>* const host_use = block->host_use;
  charge(block, bytes, operation, /*hollow=*/false);
  report_to_profiler(handle, bytes, /*comes=*/false, nullptr);
  if (host_use != nullptr) *host_use -= static_cast<int64_t>(bytes);
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
  if (block->memory == nullptr && block->host_use != nullptr) {
    *block->host_use -= static_cast<int64_t>(block->bytes);
  }
  if (DeviceMemory* memory = block->memory) {
    if (memory->watch_.releasing) memory->watch_.releasing();
    std::lock_guard<std::mutex> lock(memory->mutex_);
    // Checked again, because reset() may have detached the block meanwhile.
    if (block->memory != nullptr) {
      (block->newer != nullptr ? block->newer->older : memory->newest_) = block->older;
      if (block->older != nullptr) block->older->newer = block->newer;
      --memory->num_blocks_;
      if (block->place != nullptr) memory->allocator_->release(block->place);
      if (memory->updated_until_ == block) memory->updated_until_ = block->older;
      memory->account(*block, -static_cast<int64_t>(block->bytes));
    }
  }
  std::free(block);
}

void DeviceMemory::set_observed_category(MemoryBlock* block, MemoryCategory category) {
  if (block == nullptr || block->memory != this || block->is_noted) return;
  regroup(block, category, block->module);
}

void DeviceMemory::set_declared_category(MemoryBlock* block, MemoryCategory category) {
  if (block == nullptr || block->memory != this) return;
  block->is_noted = true;
  regroup(block, category, block->module);
}

void DeviceMemory::regroup(MemoryBlock* block, MemoryCategory category, uint16_t module) {
  if (block->category == category && block->module == module) return;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto bytes = static_cast<int64_t>(block->bytes);
  // Not through account(): the total and its peak do not change.
  by_category_[static_cast<size_t>(block->category)] -= bytes;
  by_category_[static_cast<size_t>(category)] += bytes;
  if (observer_) {
    observer_(block->category, block->module, -bytes);
    observer_(category, module, bytes);
  }
  block->category = category;
  block->module = module;
}

void DeviceMemory::name(MemoryBlock* block, std::string_view name) {
  if (block == nullptr || block->memory != this) return;
  const size_t dot = name.rfind('.');
  const std::string_view path = dot == std::string_view::npos ? "" : name.substr(0, dot);
  auto found = module_numbers_.find(path);
  if (found == module_numbers_.end()) {
    // Beyond sixteen bits modules are not told apart.
    if (path.empty() || modules_.size() > std::numeric_limits<uint16_t>::max()) return;
    found = module_numbers_.emplace(path, static_cast<uint16_t>(modules_.size())).first;
    modules_.emplace_back(path);
  }
  regroup(block, block->category, found->second);
  block->is_named = true;
}

void DeviceMemory::use_parameter(uint16_t module, bool writes) {
  if (in_backward_ || c10::GradMode::is_enabled() || !set_up_) {
    module_ = module;
  } else if (writes) {
    // An optimizer makes the state of a parameter before it changes that parameter.
    for (MemoryBlock* block = newest_; block != updated_until_; block = block->older) {
      const bool is_state = block->category == MemoryCategory::kOptimizerState ||
                            block->category == MemoryCategory::kTemporaries;
      if (block->module == 0 && is_state) regroup(block, block->category, module);
    }
    updated_until_ = newest_;
  }
}

void DeviceMemory::on_computed(MemoryBlock* result) {
  const MemoryCategory guess = result->category;
  set_observed_category(result, MemoryCategory::kActivations);
  const auto is_beside = [&](const MemoryBlock* block) {
    return block != nullptr && block->category == guess && block->step == result->step &&
           !block->is_named;
  };
  // What the function saved for its backward pass came before or after its result. Operators with
  // gradients end the row by their results, and backward passes and updates where they end.
  for (MemoryBlock* block = result->older; block != updated_until_ && is_beside(block);
       block = block->older) {
    set_observed_category(block, MemoryCategory::kActivations);
  }
  for (MemoryBlock* block = result->newer; is_beside(block); block = block->newer) {
    set_observed_category(block, MemoryCategory::kActivations);
  }
}

void DeviceMemory::begin_backward() {
  set_up_ = true;
  had_backward_ = true;
  in_backward_ = true;
}

void DeviceMemory::begin_step() {
  module_ = 0;
  updated_ = false;
  had_backward_ = false;
  // Newest first, down to the end of the previous step.
  for (MemoryBlock* block = newest_; block != nullptr && block->step == step_;
       block = block->older) {
    if (block->category == MemoryCategory::kTemporaries) {
      set_observed_category(block, MemoryCategory::kOptimizerState);
    }
  }
  ++step_;
}

std::string DeviceMemory::holders() const {
  std::array<std::vector<const MemoryBlock*>, kNumMemoryCategories> blocks;
  for (const MemoryBlock* block = newest_; block != nullptr; block = block->older) {
    blocks[static_cast<size_t>(block->category)].push_back(block);
  }
  const auto bytes_of = [&](MemoryCategory category) {
    return by_category_[static_cast<size_t>(category)];
  };
  std::vector<MemoryCategory> order = accelerate::values<MemoryCategory>();
  std::ranges::stable_sort(order, std::greater<>(), bytes_of);
  std::string text;
  for (const MemoryCategory category : order) {
    auto& held = blocks[static_cast<size_t>(category)];
    if (held.empty()) continue;
    // Newest first among equals, so that the order does not depend on addresses.
    std::ranges::stable_sort(held, std::greater<>(), &MemoryBlock::bytes);
    std::vector<std::string> largest;
    for (size_t i = 0; i < std::min(held.size(), kLargestHolders); ++i) {
      largest.push_back(
          absl::StrCat(binary_byte_text(static_cast<int64_t>(held[i]->bytes)), " by ",
                       held[i]->operation != nullptr ? held[i]->operation : "the program",
                       " in step ", held[i]->step));
    }
    absl::StrAppend(
        &text, text.empty() ? "" : "\n", "  ", to_string(category), ": ",
        binary_byte_text(bytes_of(category)), " in ", held.size(),
        held.size() == 1 ? " block (" : " blocks (largest: ", absl::StrJoin(largest, ", "), ")");
  }
  const std::string modules = module_text();
  if (!modules.empty()) absl::StrAppend(&text, "\n  by module: ", modules);
  return text;
}

std::string DeviceMemory::module_text() const {
  if (modules_.size() == 1) return "";
  std::map<std::string, int64_t> sums;
  for (const MemoryBlock* block = newest_; block != nullptr; block = block->older) {
    sums[module_pattern(modules_[block->module])] += static_cast<int64_t>(block->bytes);
  }
  std::vector<std::pair<std::string, int64_t>> largest(sums.begin(), sums.end());
  std::ranges::stable_sort(largest, std::greater<>(), &std::pair<std::string, int64_t>::second);
  if (largest.size() > kLargestModules) largest.resize(kLargestModules);
  return absl::StrJoin(largest, ", ", [](std::string* out, const auto& each) {
    absl::StrAppend(out, each.first.empty() ? "no module" : each.first, " ",
                    binary_byte_text(each.second));
  });
}

// How the device is divided, and what would make room for so many bytes.
std::string DeviceMemory::driver_text(int64_t bytes, bool for_library) const {
  const DriverFigures now = figures();
  const CachingAllocator::Figures& held = now.allocator;
  const int64_t cached = held.reserved - held.allocated;
  std::string text =
      absl::StrCat(binary_byte_text(now.free()), " of ", binary_byte_text(now.visible),
                   " are free.\nThe allocator has reserved ", binary_byte_text(held.reserved), ": ",
                   binary_byte_text(held.allocated - now.workspaces), " are tensors', ",
                   binary_byte_text(now.workspaces), " are workspaces of cuBLAS, and ",
                   binary_byte_text(cached), " are reserved but unallocated");
  if (held.active > held.allocated) {
    absl::StrAppend(&text, ", of which ", binary_byte_text(held.active - held.allocated),
                    " wait for other streams");
  }
  absl::StrAppend(&text, ". Others have ", binary_byte_text(now.context + now.libraries),
                  ": the context ", binary_byte_text(now.context));
  for (const auto& [user, taken] : libraries_) {
    absl::StrAppend(&text, ", ", user, " ", binary_byte_text(taken));
  }
  const int64_t together = now.free() + cached;
  const bool expandable = allocator_->options().expandable_segments;
  if (for_library && bytes <= together) {
    absl::StrAppend(&text,
                    ". A library gets nothing of what the allocator has reserved: use the group "
                    "once before the model fills the device, or empty the cache before its first "
                    "collective");
  } else if (!expandable && CachingAllocator::least_growth(bytes) <= together) {
    // A retry has given back what was whole, so the rest is in pieces.
    absl::StrAppend(&text,
                    ". Together the free bytes suffice, but they are in pieces (fragmentation): "
                    "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, here "
                    "expandable_segments=true in the cluster's text");
  }
  return text;
}

void DeviceMemory::raise_out_of_memory(size_t bytes, const char* operation,
                                       bool for_library) const {
  const std::string text = holders();
  const auto asked = static_cast<int64_t>(bytes);
  TORCH_CHECK_WITH(OutOfMemoryError, false, name_,
                   " is out of memory: ", operation != nullptr ? operation : "the program",
                   " asked for ", binary_byte_text(asked), " in step ", step_, ", ",
                   driver_memory_ ? driver_text(asked, for_library)
                                  : absl::StrCat(binary_byte_text(capacity_ - in_use_), " of ",
                                                 binary_byte_text(capacity_), " are free"),
                   text.empty() ? "" : ". Held:\n", text);
}

}  // namespace accelerate::simulator
