#include "simulator/device/host_memory.h"

#include <iterator>
#include <map>
#include <mutex>

#include <c10/core/CPUAllocator.h>

namespace accelerate::simulator {
namespace {

// Allocates blocks that `release` frees.
template <c10::DeleterFnPtr release>
class BlockAllocator : public c10::Allocator {
 public:
  c10::DeleterFnPtr raw_deleter() const final { return release; }
  void copy_data(void* target, const void* source, size_t bytes) const final {
    default_copy_data(target, source, bytes);
  }

 protected:
  static c10::DataPtr owned(void* data, c10::Device device) {
    return {data, data, release, device};
  }
};

class DeviceAllocator final : public BlockAllocator<&DeviceMemory::release> {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const int index = current_device();
    const char* operation = ChargeScope::charged_operation();
    return owned(SimDevice::of(index).memory().allocate(bytes, operation), torch_device(index));
  }
};

class HostAllocator final : public BlockAllocator<&DeviceMemory::release> {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    SimDevice* device = ChargeScope::charged_device();
    void* data = device != nullptr
                     ? device->memory().allocate(bytes, ChargeScope::charged_operation())
                     : DeviceMemory::allocate_uncharged(bytes);
    return owned(data, c10::Device(c10::kCPU));
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
    void* data = DeviceMemory::allocate_uncharged(bytes);
    if (data != nullptr) {
      PinnedBlocks& blocks = pinned_blocks();
      std::lock_guard<std::mutex> lock(blocks.mutex);
      blocks.size_by_begin.emplace(static_cast<const char*>(data), bytes);
    }
    return owned(data, c10::Device(c10::kCPU));
  }
};

}  // namespace

SimDevice*& ChargeScope::charged_device() {
  thread_local SimDevice* device = nullptr;
  return device;
}

const char*& ChargeScope::charged_operation() {
  thread_local const char* operation = nullptr;
  return operation;
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
