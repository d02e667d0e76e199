#include "accelerate/state/memory.h"

#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "accelerate/testing/fake_runtime.h"

namespace accelerate {
namespace {

class CountingRuntime : public FakeRuntime {
 public:
  void empty_device_cache() override {
    ++clearings;
    if (at_clearing) at_clearing();
  }
  int clearings = 0;
  std::function<void()> at_clearing;
};

class Memory : public testing::Test {
 protected:
  CountingRuntime runtime_;
  const RuntimeScope scope_{runtime_};
};

TEST_F(Memory, TheCacheIsTheRuntimesToClear) {
  clear_device_cache();
  EXPECT_EQ(runtime_.clearings, 1);
}

// A stream of data: reset() starts it anew.
struct Stream {
  void reset() {}
};

static_assert(Releasable<at::Tensor> && Releasable<torch::nn::Linear> && Releasable<std::string>);
static_assert(Releasable<std::vector<at::Tensor>> && Releasable<std::optional<int>>);
static_assert(!internal::CanBeReset<Stream>);

TEST_F(Memory, ReleasesWhatItIsGivenBeforeItClearsTheCache) {
  auto pointer = std::make_shared<int>(1);
  const std::weak_ptr<int> pointee = pointer;
  auto unique = std::make_unique<int>(2);
  at::Tensor tensor = at::empty({2});
  std::vector<at::Tensor> tensors{tensor, at::empty({3})};
  std::optional<std::string> text = "text";
  torch::nn::Linear module(2, 2);
  // What is still held then would not come back to the device.
  runtime_.at_clearing = [&] {
    EXPECT_TRUE(pointee.expired());
    EXPECT_FALSE(tensor.defined());
    EXPECT_EQ(tensors.capacity(), 0);
    EXPECT_TRUE(module.is_empty());
  };
  release_memory(pointer, unique, tensor, tensors, text, module);
  EXPECT_TRUE(pointee.expired());
  EXPECT_EQ(unique, nullptr);
  EXPECT_FALSE(tensor.defined());
  EXPECT_EQ(tensors.capacity(), 0);
  EXPECT_EQ(text, std::nullopt);
  EXPECT_TRUE(module.is_empty());
  EXPECT_EQ(runtime_.clearings, 1);
}

template <typename Error>
bool reduces(const std::string& text) {
  if constexpr (std::derived_from<Error, c10::Error>) {
    return should_reduce_batch_size(Error(c10::SourceLocation{__func__, __FILE__, 0}, text));
  } else {
    return should_reduce_batch_size(Error(text));
  }
}

TEST(ShouldReduceBatchSize, KnowsOutOfMemoryErrorsByTheirType) {
  EXPECT_TRUE(reduces<c10::OutOfMemoryError>("whatever it says"));
}

TEST(ShouldReduceBatchSize, KnowsAllocatorsByTheirText) {
  for (const char* text :
       {"CUDA out of memory. Tried to allocate 2 GiB", "XPU out of memory. Tried",
        "MPS backend out of memory (MPS allocated: 8.00 GB, max allowed: 9.07 GB)",
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear",
        "[enforce fail at alloc_cpu.cpp:114] err == 0. DefaultCPUAllocator: can't allocate memory",
        "FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size"}) {
    EXPECT_TRUE(reduces<c10::Error>(text)) << text;
    EXPECT_TRUE(reduces<std::runtime_error>(text)) << text;
    EXPECT_FALSE(reduces<c10::ValueError>(text)) << text;
    EXPECT_FALSE(reduces<c10::TypeError>(text)) << text;
    EXPECT_FALSE(reduces<c10::IndexError>(text)) << text;
    EXPECT_FALSE(reduces<std::invalid_argument>(text)) << text;
  }
}

TEST(ShouldReduceBatchSize, LeavesOtherErrorsAlone) {
  for (const char* text :
       {"", "shape mismatch", "CUDA out of memory: x", "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"}) {
    EXPECT_FALSE(reduces<c10::Error>(text)) << text;
    EXPECT_FALSE(reduces<std::runtime_error>(text)) << text;
  }
  EXPECT_FALSE(should_reduce_batch_size(std::bad_alloc()));
}

}  // namespace
}  // namespace accelerate
