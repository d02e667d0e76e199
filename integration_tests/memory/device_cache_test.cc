// The cached memory of its device that a real rank gives back, and when.
//
// The allocator for CPU tensors is replaced by one that keeps freed blocks, as those of
// accelerators do, and registers how to empty it, as they do.
#include "accelerate/runtime/device_cache.h"

#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/process/real_runtime.h"

namespace accelerate {
namespace {

// Never frees a block by itself. One thread uses it.
class CachingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* const data = std::aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    return {data, data, &keep, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &keep; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  size_t num_cached() const { return blocks().size(); }
  void empty_cache() {
    for (void* block : blocks()) std::free(block);
    blocks().clear();
  }

 private:
  static std::vector<void*>& blocks() {
    static auto* all = new std::vector<void*>();
    return *all;
  }
  static void keep(void* block) { blocks().push_back(block); }
};

class DeviceCache : public ::testing::Test {
 protected:
  DeviceCache() {
    c10::SetCPUAllocator(&allocator_, kPriority);
    register_device_cache(c10::kCPU, [] { allocator_.empty_cache(); });
  }
  ~DeviceCache() override { c10::SetCPUAllocator(usual_, kPriority); }

  static std::unique_ptr<RealRuntime> one_rank() {
    Environment environment;
    environment.set("RANK", "0");
    environment.set("WORLD_SIZE", "1");
    environment.set("ACCELERATE_USE_CPU", "true");
    return RealRuntime::from_environment(std::move(environment)).value();
  }

  static void use_and_free() { torch::ones({1000}).add_(1); }

  static constexpr uint8_t kPriority = 100;
  static inline CachingAllocator allocator_;
  c10::Allocator* const usual_ = c10::GetCPUAllocator();
  const std::unique_ptr<RealRuntime> runtime_ = one_rank();
  const RuntimeScope scope_{*runtime_};
};

TEST_F(DeviceCache, IsWhatClearDeviceCacheGivesBack) {
  const torch::Tensor kept = torch::ones({1000});
  use_and_free();
  EXPECT_GT(allocator_.num_cached(), 0);
  clear_device_cache();
  EXPECT_EQ(allocator_.num_cached(), 0);
  EXPECT_EQ(kept.sum().item<float>(), 1000) << "memory in use stays";
}

TEST_F(DeviceCache, OfReleasedObjectsIsGivenBack) {
  torch::Tensor tensor = torch::ones({1000});
  release_memory(tensor);
  EXPECT_EQ(allocator_.num_cached(), 0);
}

TEST_F(DeviceCache, OfFreedObjectsIsGivenBack) {
  Accelerator accelerator;
  torch::Tensor tensor = torch::ones({1000});
  use_and_free();
  accelerator.free_memory(tensor);
  EXPECT_EQ(allocator_.num_cached(), 0);
}

TEST_F(DeviceCache, IsEmptyAtEachTryOfABatchSize) {
  std::vector<size_t> cached;
  auto train = find_executable_batch_size(
      [&](int64_t batch_size) {
        cached.push_back(allocator_.num_cached());
        use_and_free();
        TORCH_CHECK_WITH(OutOfMemoryError, batch_size <= 8, "too much");
      },
      {.starting_batch_size = 9});
  use_and_free();
  train();
  EXPECT_GT(cached.size(), 1);
  for (const size_t blocks : cached) EXPECT_EQ(blocks, 0);
}

}  // namespace
}  // namespace accelerate
