#include "simulator/device/device_memory.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::simulator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr int64_t kMebibyte = 1024 * 1024;

MemoryBlock* block(void* data) { return static_cast<MemoryBlock*>(data) - 1; }

int64_t held(const DeviceMemory& memory, MemoryCategory category) {
  return memory.by_category()[static_cast<size_t>(category)];
}

class DeviceMemoryTest : public ::testing::Test {
 protected:
  DeviceMemoryTest() { memory_.reset("sim:1 (test)", kMebibyte, nullptr); }

  // Never destroyed in production either: blocks point to it.
  DeviceMemory& memory_ = *new DeviceMemory();
};

TEST_F(DeviceMemoryTest, CountsInBlocksOf512Bytes) {
  void* one = memory_.allocate(1, nullptr);
  void* more = memory_.allocate(513, nullptr);
  EXPECT_EQ(memory_.in_use(), 512 + 1024);
  EXPECT_EQ(memory_.num_blocks(), 2);
  DeviceMemory::release(one);
  EXPECT_EQ(memory_.in_use(), 1024);
  DeviceMemory::release(more);
  EXPECT_EQ(memory_.in_use(), 0);
  EXPECT_EQ(memory_.peak(), 512 + 1024);
}

TEST_F(DeviceMemoryTest, GivesNothingForNothing) {
  EXPECT_EQ(memory_.allocate(0, nullptr), nullptr);
  DeviceMemory::release(nullptr);
  EXPECT_EQ(memory_.num_blocks(), 0);
}

TEST_F(DeviceMemoryTest, FillsUpToTheLastBlockAndNoFurther) {
  void* all = memory_.allocate(kMebibyte, nullptr);
  EXPECT_THROW(memory_.allocate(1, nullptr), c10::OutOfMemoryError);
  EXPECT_EQ(memory_.in_use(), kMebibyte);
  DeviceMemory::release(all);
  DeviceMemory::release(memory_.allocate(kMebibyte, nullptr));
}

TEST_F(DeviceMemoryTest, AnErrorNamesTheDeviceTheRequestAndTheHolders) {
  void* data = memory_.allocate(kMebibyte / 2, "aten::mm");
  try {
    memory_.allocate(kMebibyte, "aten::add");
    FAIL() << "no error";
  } catch (const c10::OutOfMemoryError& error) {
    EXPECT_THAT(std::string(error.what_without_backtrace()),
                AllOf(HasSubstr("sim:1 (test) is out of memory"),
                      HasSubstr("aten::add asked for 1.00 MiB in step 0"),
                      HasSubstr("512.00 KiB of 1.00 MiB are free"),
                      HasSubstr("activations: 512.00 KiB in 1 block (512.00 KiB by aten::mm")));
  }
  DeviceMemory::release(data);
}

TEST_F(DeviceMemoryTest, TellsWhatMemoryIsForByWhenItWasMade) {
  std::vector<void*> blocks;
  auto allocate = [&] { blocks.push_back(memory_.allocate(512, nullptr)); };
  {
    const c10::AutoGradMode no_grad(false);
    allocate();  // a module that moves to its device
  }
  allocate();  // an activation
  memory_.begin_backward();
  allocate();
  memory_.end_backward();
  {
    const c10::AutoGradMode no_grad(false);
    allocate();  // momentum
    memory_.on_update();
  }
  EXPECT_EQ(held(memory_, MemoryCategory::kParameters), 512);
  EXPECT_EQ(held(memory_, MemoryCategory::kActivations), 512);
  EXPECT_EQ(held(memory_, MemoryCategory::kTemporaries), 512);
  EXPECT_EQ(held(memory_, MemoryCategory::kOptimizerState), 512);
  memory_.set_observed_category(block(blocks[2]), MemoryCategory::kGradients);
  EXPECT_TRUE(memory_.on_forward());
  EXPECT_EQ(held(memory_, MemoryCategory::kGradients), 512);
  EXPECT_EQ(held(memory_, MemoryCategory::kOptimizerState), 512);
  EXPECT_EQ(held(memory_, MemoryCategory::kTemporaries), 0);
  EXPECT_EQ(memory_.step(), 1);
  for (void* data : blocks) DeviceMemory::release(data);
  EXPECT_EQ(memory_.in_use(), 0);
}

// As in a torch::autograd::Function, whose forward pass has no gradients.
TEST_F(DeviceMemoryTest, ResultsWithAHistoryAreActivationsWithWhatIsSavedBesideThem) {
  std::vector<void*> blocks;
  const auto allocate = [&](bool gradients) {
    const c10::AutoGradMode mode(gradients);
    blocks.push_back(memory_.allocate(512, "aten::mul"));
    return block(blocks.back());
  };
  allocate(false);  // a module that moves to its device, and one that the program names
  memory_.name(allocate(false), "layer.weight");
  MemoryBlock* first_saved = allocate(false);
  MemoryBlock* first = allocate(false);
  EXPECT_TRUE(memory_.is_guess(*first));
  memory_.on_computed(first);
  EXPECT_EQ(first_saved->category, MemoryCategory::kActivations);
  EXPECT_EQ(held(memory_, MemoryCategory::kActivations), 2 * 512);
  EXPECT_EQ(held(memory_, MemoryCategory::kParameters), 2 * 512);
  memory_.begin_backward();
  MemoryBlock* of_pass = allocate(false);
  EXPECT_FALSE(memory_.is_guess(*of_pass));
  memory_.end_backward();
  // The next pass, before any update.
  MemoryBlock* second = allocate(false);
  MemoryBlock* second_saved = allocate(false);
  allocate(true);
  MemoryBlock* later = allocate(false);
  EXPECT_TRUE(memory_.is_guess(*second));
  memory_.on_computed(second);
  EXPECT_EQ(second->category, MemoryCategory::kActivations);
  EXPECT_EQ(second_saved->category, MemoryCategory::kActivations);
  EXPECT_EQ(of_pass->category, MemoryCategory::kTemporaries);
  EXPECT_EQ(later->category, MemoryCategory::kTemporaries);
  EXPECT_FALSE(memory_.is_guess(*block(blocks[0]))) << "the first pass has found all parameters";
  memory_.set_declared_category(later, MemoryCategory::kTemporaries);
  EXPECT_FALSE(memory_.is_guess(*later));
  for (void* data : blocks) DeviceMemory::release(data);
}

TEST_F(DeviceMemoryTest, BelievesTheProgramMoreThanWhatItRecognises) {
  void* data = memory_.allocate(512, nullptr);
  memory_.set_declared_category(block(data), MemoryCategory::kGatheredParameters);
  for (const auto seen : {MemoryCategory::kParameters, MemoryCategory::kBuckets}) {
    memory_.set_observed_category(block(data), seen);
    EXPECT_EQ(held(memory_, MemoryCategory::kGatheredParameters), 512);
    EXPECT_EQ(held(memory_, seen), 0);
  }
  memory_.set_declared_category(block(data), MemoryCategory::kGradients);
  EXPECT_EQ(held(memory_, MemoryCategory::kGradients), 512);
  EXPECT_EQ(held(memory_, MemoryCategory::kGatheredParameters), 0);
  DeviceMemory::release(data);
  EXPECT_EQ(held(memory_, MemoryCategory::kGradients), 0);
}

TEST_F(DeviceMemoryTest, AStepNeedsABackwardPassAndAnUpdate) {
  memory_.on_update();  // initial weights
  EXPECT_FALSE(memory_.on_forward());
  memory_.begin_backward();
  memory_.end_backward();
  EXPECT_FALSE(memory_.on_forward());  // gradients accumulate
  memory_.on_update();
  EXPECT_TRUE(memory_.on_forward());
  EXPECT_FALSE(memory_.on_forward());
}

TEST_F(DeviceMemoryTest, ForgetsBlocksOfAnEarlierRun) {
  void* old = memory_.allocate(512, nullptr);
  memory_.reset("sim:1 (test)", kMebibyte, nullptr);
  EXPECT_EQ(memory_.in_use(), 0);
  memory_.set_observed_category(block(old), MemoryCategory::kBuckets);
  DeviceMemory::release(old);
  EXPECT_EQ(memory_.in_use(), 0);
}

TEST_F(DeviceMemoryTest, TellsItsObserverEveryChange) {
  std::vector<std::pair<MemoryCategory, int64_t>> changes;
  memory_.reset("sim:1 (test)", kMebibyte, [&](MemoryCategory category, uint32_t, int64_t delta) {
    changes.emplace_back(category, delta);
  });
  void* data = memory_.allocate(512, nullptr);
  memory_.set_observed_category(block(data), MemoryCategory::kBuckets);
  DeviceMemory::release(data);
  const std::vector<std::pair<MemoryCategory, int64_t>> expected{
      {MemoryCategory::kActivations, 512},
      {MemoryCategory::kActivations, -512},
      {MemoryCategory::kBuckets, 512},
      {MemoryCategory::kBuckets, -512}};
  EXPECT_EQ(changes, expected);
}

TEST_F(DeviceMemoryTest, ChargesAKernelsMemoryOnceItIsTheDevices) {
  void* columns = memory_.allocate_for_kernel(4096, "aten::convolution");
  void* result = memory_.allocate_for_kernel(513, "aten::convolution");
  EXPECT_EQ(memory_.in_use(), 0);
  EXPECT_EQ(memory_.charge_result(result, "aten::convolution"), result);
  EXPECT_EQ(memory_.in_use(), 1024);
  EXPECT_STREQ(block(result)->operation, "aten::convolution");
  EXPECT_EQ(memory_.charge_result(result, nullptr), result) << "it is the device's already";
  EXPECT_EQ(memory_.in_use(), 1024);
  DeviceMemory::release(columns);
  DeviceMemory::release(result);
  EXPECT_EQ(memory_.in_use(), 0);
  EXPECT_EQ(memory_.peak(), 1024) << "the columns count nowhere";
}

TEST_F(DeviceMemoryTest, AResultWithoutRoomIsAnErrorThatNamesItsOperatorAndTheHolders) {
  void* all = memory_.allocate(kMebibyte, "aten::mm");
  void* result = memory_.allocate_for_kernel(8, "aten::add");
  try {
    memory_.charge_result(result, "aten::add");
    FAIL() << "no error";
  } catch (const c10::OutOfMemoryError& error) {
    EXPECT_THAT(std::string(error.what_without_backtrace()),
                AllOf(HasSubstr("aten::add asked for"), HasSubstr("1.00 MiB by aten::mm")));
  }
  // It is still the host's.
  EXPECT_EQ(memory_.num_blocks(), 1);
  DeviceMemory::release(result);
  DeviceMemory::release(all);
  EXPECT_EQ(memory_.in_use(), 0);
  // A result that can never fit is refused before a kernel computes it.
  EXPECT_THROW(memory_.allocate_for_kernel(kMebibyte + 1, "aten::add"), c10::OutOfMemoryError);
  DeviceMemory::release(memory_.allocate_for_kernel(kMebibyte, "aten::add"));
}

class HollowBlocks : public DeviceMemoryTest {
 protected:
  HollowBlocks() { memory_.compute_shapes(1024); }
};

TEST_F(HollowBlocks, AreThoseOfMoreThanTheLimit) {
  void* real = memory_.allocate(1024, nullptr);
  void* hollow = memory_.allocate(1025, nullptr);
  EXPECT_EQ(block(real)->contents, Contents::kValues);
  EXPECT_EQ(block(real)->data(), real);
  EXPECT_EQ(block(hollow)->contents, Contents::kHollow);
  EXPECT_NE(block(hollow)->data(), hollow);
  EXPECT_EQ(memory_.in_use(), 1024 + 1536);
  DeviceMemory::release(real);
  DeviceMemory::release(hollow);
  EXPECT_EQ(memory_.in_use(), 0);
}

TEST_F(HollowBlocks, AreChargedMarkedAndNamedLikeOthers) {
  void* data = memory_.allocate(kMebibyte / 2, "aten::mm");
  memory_.set_observed_category(block(data), MemoryCategory::kBuckets);
  EXPECT_EQ(held(memory_, MemoryCategory::kBuckets), kMebibyte / 2);
  EXPECT_THAT(memory_.holders(),
              HasSubstr("buckets: 512.00 KiB in 1 block (512.00 KiB by aten::mm"));
  EXPECT_THROW(memory_.allocate(kMebibyte, nullptr), c10::OutOfMemoryError);
  DeviceMemory::release(data);
}

TEST_F(HollowBlocks, ReuseTheAddressesOfReleasedOnes) {
  void* first = memory_.allocate(4096, nullptr);
  void* const address = block(first)->data();
  void* second = memory_.allocate(4096, nullptr);
  EXPECT_EQ(block(second)->data(), static_cast<char*>(address) + 4096);
  DeviceMemory::release(first);
  void* third = memory_.allocate(2048, nullptr);
  EXPECT_EQ(block(third)->data(), address);
  EXPECT_EQ(memory_.allocator()->figures().reserved, 2 * kMebibyte);
  DeviceMemory::release(second);
  DeviceMemory::release(third);
}

TEST_F(HollowBlocks, ComeFromKernelsWithTheirBytes) {
  void* older = memory_.allocate(512, nullptr);
  void* small = memory_.allocate_for_kernel(512, "aten::add");
  void* large = memory_.allocate_for_kernel(4096, "aten::add");
  void* newer = memory_.allocate(512, nullptr);
  EXPECT_EQ(block(large)->contents, Contents::kValues);
  EXPECT_EQ(memory_.charge_result(small, "aten::add"), small);
  void* hollow = memory_.charge_result(large, "aten::add");
  EXPECT_EQ(block(hollow)->contents, Contents::kHollow);
  EXPECT_STREQ(block(hollow)->operation, "aten::add");
  EXPECT_EQ(memory_.in_use(), 3 * 512 + 4096);
  EXPECT_EQ(memory_.num_blocks(), 4);
  for (void* data : {older, hollow, small, newer}) DeviceMemory::release(data);
  EXPECT_EQ(memory_.in_use(), 0);
  EXPECT_EQ(memory_.num_blocks(), 0);
}

TEST_F(HollowBlocks, KeepKernelsFromComputingMuch) {
  memory_.reset("sim:1 (test)", int64_t{1} << 40, nullptr);
  DeviceMemory::release(memory_.allocate_for_kernel(size_t{65} << 20, nullptr));
  memory_.compute_shapes(1024);
  EXPECT_THROW(memory_.allocate_for_kernel(size_t{65} << 20, "aten::mm"), KernelTooLarge);
  DeviceMemory::release(memory_.allocate_for_kernel(size_t{64} << 20, "aten::mm"));
  EXPECT_EQ(memory_.in_use(), 0);
}

TEST_F(HollowBlocks, OfAnEarlierRunAreForgotten) {
  void* old = memory_.allocate(4096, nullptr);
  memory_.reset("sim:1 (test)", kMebibyte, nullptr);
  void* data = memory_.allocate(4096, nullptr);
  EXPECT_EQ(block(data)->contents, Contents::kValues);
  DeviceMemory::release(old);
  EXPECT_EQ(memory_.in_use(), 4096);
  DeviceMemory::release(data);
}

// A host, and a device with four streams.
class FakeDriver final : public CachingAllocator::Driver {
 public:
  int64_t host_ns() const override { return now; }
  int current_stream() const override { return current; }
  int64_t stream_ns(int stream) const override { return ends[static_cast<size_t>(stream)]; }
  void host_waits(int64_t until_ns) override { now = std::max(now, until_ns); }
  int64_t busy_until_ns() const override { return *std::max_element(ends.begin(), ends.end()); }

  int64_t now = 0;
  int current = 0;
  std::vector<int64_t> ends = {0, 0, 0, 0};
};

// 100 MiB are shown, of which the context takes 10.
class WithADriver : public DeviceMemoryTest {
 protected:
  WithADriver() { model({}); }
  void model(const DeviceModel& device) {
    memory_.reset("sim:1 (test)", kMebibyte, nullptr);
    memory_.model_driver({.visible_bytes = 100 * kMebibyte,
                          .context_bytes = 10 * kMebibyte,
                          .product_workspace_bytes = 4 * kMebibyte,
                          .malloc_ns = 3,
                          .free_ns = 5},
                         device, driver_);
  }
  void* allocate(int64_t mebibytes) {
    return memory_.allocate(static_cast<size_t>(mebibytes * kMebibyte), "aten::mm");
  }
  DriverFigures figures() const { return *memory_.driver_figures(); }
  std::string error_of(const std::function<void()>& run) {
    try {
      run();
    } catch (const c10::OutOfMemoryError& error) {
      return error.what_without_backtrace();
    }
    return "no error";
  }

  // Outlives the memory's use of it, as devices do.
  FakeDriver& driver_ = *new FakeDriver();
};

TEST_F(WithADriver, SegmentsMustFitBesideTheContext) {
  void* first = allocate(88);
  EXPECT_EQ(figures().free(), 2 * kMebibyte);
  EXPECT_EQ(memory_.capacity(), 100 * kMebibyte);
  // 3 MiB would need a segment of 20.
  EXPECT_THAT(
      error_of([&] { allocate(3); }),
      AllOf(HasSubstr("sim:1 (test) is out of memory: aten::mm asked for 3.00 MiB in step "
                      "0, 2.00 MiB of 100.00 MiB are free.\nThe allocator has reserved "
                      "88.00 MiB: 88.00 MiB are tensors', 0 bytes are workspaces of cuBLAS, "
                      "and 0 bytes are reserved but unallocated. Others have 10.00 MiB: the "
                      "context 10.00 MiB. Held:"),
            HasSubstr("activations: 88.00 MiB in 1 block")));
  void* small = memory_.allocate(512, nullptr);
  EXPECT_EQ(figures().free(), 0);
  for (void* data : {first, small}) DeviceMemory::release(data);
  EXPECT_EQ(memory_.in_use(), 0);
  EXPECT_EQ(figures().allocator.reserved, 90 * kMebibyte) << "segments stay";
  memory_.empty_cache();
  EXPECT_EQ(figures().free(), 90 * kMebibyte);
}

TEST_F(WithADriver, AdvisesExpandableSegmentsWhereFragmentationIsTheCause) {
  const auto fill = [&] {
    std::vector<void*> blocks = {allocate(40), allocate(40)};
    for (void* data : blocks) DeviceMemory::release(data);
    // A part of one segment stays in use.
    return allocate(12);
  };
  void* held = fill();
  EXPECT_THAT(error_of([&] { allocate(60); }),
              AllOf(HasSubstr("28.00 MiB are reserved but unallocated"),
                    HasSubstr("in pieces (fragmentation): set "
                              "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")));
  EXPECT_EQ(figures().allocator.retries, 1);
  EXPECT_EQ(figures().inactive_split, 28 * kMebibyte);
  EXPECT_THAT(error_of([&] { allocate(80); }), Not(HasSubstr("fragmentation")));
  // A page of 20 MiB would not fit either.
  void* more = allocate(48);
  void* rest = allocate(27);
  EXPECT_THAT(error_of([&] { allocate(2); }), Not(HasSubstr("fragmentation")));
  for (void* data : {held, more, rest}) DeviceMemory::release(data);

  model({.expandable_segments = true});
  held = fill();
  void* large = allocate(60);
  EXPECT_EQ(memory_.in_use(), 72 * kMebibyte);
  EXPECT_THAT(error_of([&] { allocate(60); }), Not(HasSubstr("expandable_segments")));
  for (void* data : {held, large}) DeviceMemory::release(data);
}

TEST_F(WithADriver, ALibraryTakesWhatTheAllocatorHasNotReserved) {
  void* data = allocate(60);
  DeviceMemory::release(data);
  memory_.allocate_for_library(20 * kMebibyte, "NCCL for group \"a\"");
  EXPECT_EQ(figures().free(), 10 * kMebibyte);
  // The cache does not make room.
  EXPECT_THAT(
      error_of([&] { memory_.allocate_for_library(20 * kMebibyte, "NCCL for group \"b\""); }),
      AllOf(HasSubstr("NCCL for group \"b\" asked for 20.00 MiB"),
            HasSubstr("the context 10.00 MiB, NCCL for group \"a\" 20.00 MiB"),
            HasSubstr("A library gets nothing of what the allocator has reserved")));
  memory_.empty_cache();
  memory_.allocate_for_library(20 * kMebibyte, "NCCL for group \"b\"");
  EXPECT_EQ(figures().libraries, 40 * kMebibyte);
  EXPECT_THAT(error_of([&] { allocate(52); }), HasSubstr("group \"b\" 20.00 MiB"));
  DeviceMemory::release(allocate(50));
}

TEST_F(WithADriver, ProductsHaveAWorkspaceForEachStreamAndPass) {
  const auto prepare = [&](int stream) {
    driver_.current = stream;
    memory_.prepare_product();
    memory_.prepare_product();
    return figures().workspaces / (4 * kMebibyte);
  };
  EXPECT_EQ(prepare(0), 1);
  EXPECT_EQ(prepare(1), 2);
  memory_.begin_backward();
  EXPECT_EQ(prepare(0), 3);
  memory_.end_backward();
  EXPECT_EQ(prepare(0), 3);
  EXPECT_EQ(figures().allocator.allocated, 12 * kMebibyte);
  EXPECT_EQ(memory_.in_use(), 0) << "no tensor";
}

TEST_F(WithADriver, BlocksOfStreamsAreApartAndWaitForOtherUsers) {
  void* data = allocate(30);
  memory_.record_stream(block(data), 1);
  driver_.ends[1] = 1000;
  DeviceMemory::release(data);
  EXPECT_EQ(memory_.in_use(), 0);
  EXPECT_EQ(figures().allocator.active, 30 * kMebibyte);
  void* other = allocate(30);
  EXPECT_EQ(figures().allocator.reserved, 60 * kMebibyte) << "the first is in use on stream 1";
  driver_.now = 1000;
  void* third = allocate(30);
  EXPECT_EQ(figures().allocator.reserved, 60 * kMebibyte);
  DeviceMemory::release(third);
  driver_.current = 2;
  // Only a retry gives the free one to another stream.
  void* on_another = allocate(40);
  EXPECT_EQ(figures().allocator.retries, 1);
  EXPECT_EQ(figures().allocator.reserved, 70 * kMebibyte);
  for (void* each : {other, on_another}) DeviceMemory::release(each);
}

TEST_F(WithADriver, HollowBlocksArePlacedAsRealOnes) {
  memory_.compute_shapes(1024);
  void* hollow = allocate(88);
  EXPECT_EQ(block(hollow)->contents, Contents::kHollow);
  EXPECT_THAT(error_of([&] { allocate(3); }), HasSubstr("2.00 MiB of 100.00 MiB are free"));
  DeviceMemory::release(hollow);
  EXPECT_EQ(memory_.in_use(), 0);
}

TEST_F(WithADriver, BlocksOfAnEarlierRunAreForgotten) {
  void* old = allocate(30);
  model({});
  EXPECT_EQ(figures().allocator.reserved, 0);
  memory_.record_stream(block(old), 1);
  DeviceMemory::release(old);
  EXPECT_EQ(figures().allocator.allocated, 0);
}

TEST(HostBlocks, AreCountedAsLongAsTheyLive) {
  std::atomic<int64_t> use = 0;
  void* counted = DeviceMemory::allocate_uncharged(100, &use);
  void* other = DeviceMemory::allocate_uncharged(100);
  EXPECT_EQ(use, 128);
  DeviceMemory::release(other);
  EXPECT_EQ(use, 128);
  DeviceMemory::release(counted);
  EXPECT_EQ(use, 0);
}

// Bytes by the path of a module, as the observer is told.
class ModulesOfMemory : public ::testing::Test {
 protected:
  ModulesOfMemory() {
    memory_.reset(
        "sim:0 (test)", 64 * kMebibyte,
        [this](MemoryCategory, uint32_t module, int64_t delta) { sums_[module] += delta; });
  }
  MemoryBlock* allocated(size_t bytes, const char* operation = "aten::mm") {
    return MemoryBlock::of(memory_.allocate(bytes, operation));
  }
  MemoryBlock* parameter(size_t bytes, const char* name) {
    const c10::AutoGradMode without_gradients(false);
    MemoryBlock* block = allocated(bytes, nullptr);
    memory_.set_observed_category(block, MemoryCategory::kParameters);
    memory_.name(block, name);
    return block;
  }
  std::map<std::string, int64_t> by_module() const {
    std::map<std::string, int64_t> sums;
    for (const auto& [module, bytes] : sums_) {
      if (bytes != 0) sums[memory_.modules()[module]] = bytes;
    }
    return sums;
  }

  DeviceMemory memory_;
  std::map<uint32_t, int64_t> sums_;
};

TEST_F(ModulesOfMemory, ActivationsAreForTheModuleWhoseParameterWasUsedLast) {
  MemoryBlock* first = parameter(512, "layers.0.weight");
  MemoryBlock* second = parameter(512, "layers.1.weight");
  allocated(1024);  // an input
  memory_.on_use(*first, /*writes=*/false);
  MemoryBlock* product = allocated(2048);
  MemoryBlock* activation = allocated(4096, "aten::relu");
  memory_.on_use(*second, false);
  allocated(8192);
  EXPECT_THAT(by_module(), UnorderedElementsAre(Pair("", 1024), Pair("layers.0", 512 + 2048 + 4096),
                                                Pair("layers.1", 512 + 8192)));
  // No parameter: what it belongs to does not change.
  memory_.on_use(*activation, false);
  allocated(512);
  EXPECT_EQ(by_module().at("layers.1"), 512 + 8192 + 512);
  DeviceMemory::release(product->handle());
  EXPECT_EQ(by_module().at("layers.0"), 512 + 4096);
  EXPECT_THAT(memory_.holders(), HasSubstr("by module: layers.* 13.50 KiB, no module 1.00 KiB"));
}

TEST_F(ModulesOfMemory, OptimizerStateIsForTheParameterThatIsWrittenNext) {
  MemoryBlock* first = parameter(512, "layers.0.weight");
  MemoryBlock* second = parameter(512, "layers.1.weight");
  memory_.begin_backward();
  memory_.on_use(*first, false);
  MemoryBlock* gradient = allocated(512);
  memory_.end_backward();
  MemoryBlock* before = allocated(1024);  // after the pass, outside of the update
  {
    const c10::AutoGradMode without_gradients(false);
    memory_.on_update();
    for (MemoryBlock* each : {first, second}) {
      allocated(2048, nullptr);
      allocated(2048, nullptr);
      memory_.on_use(*each, /*writes=*/true);
    }
  }
  EXPECT_THAT(by_module(), UnorderedElementsAre(Pair("", 1024), Pair("layers.0", 512 + 512 + 4096),
                                                Pair("layers.1", 512 + 4096)));
  memory_.name_like(before, *second);
  EXPECT_EQ(by_module().count(""), 0u);
  // The next step's input belongs to no module.
  memory_.on_forward();
  allocated(512);
  EXPECT_EQ(by_module().at(""), 512);
  EXPECT_EQ(gradient->module, first->module);
}

TEST_F(ModulesOfMemory, ParametersOfTheModelItselfBelongToNone) {
  parameter(512, "weight");
  EXPECT_THAT(by_module(), UnorderedElementsAre(Pair("", 512)));
  EXPECT_THAT(memory_.holders(), Not(HasSubstr("by module")));
}

}  // namespace
}  // namespace accelerate::simulator
