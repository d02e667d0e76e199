// What replays take besides the values that are asked for; accelerate/big_model/empty_model_test.cc
// has the values.
#include "accelerate/operators/construction_record.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace accelerate {
namespace {

// The bytes of tensors that this thread asks for.
class HostGauge : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    in_use_ += bytes;
    peak_ = std::max(peak_, in_use_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t peak() const { return peak_; }

 private:
  int64_t in_use_ = 0, peak_ = 0;
};

constexpr int64_t kSize = 256, kBytes = kSize * kSize * 4;

// The model initialises itself when all of it is there.
at::Tensor last_weight() {
  torch::manual_seed(5);
  std::vector<torch::nn::Linear> layers;
  for (int i = 0; i < 6; ++i) {
    layers.emplace_back(torch::nn::LinearOptions(kSize, kSize).bias(false));
  }
  const torch::NoGradGuard no_grad;
  for (const torch::nn::Linear& layer : layers) layer->weight.normal_();
  return layers.back()->weight;
}

// The numbers of the other weights come before, and nothing wants these.
TEST(ConstructionRecord, DrawsWhatComesBeforeOneTensorAtATime) {
  const at::Tensor weight = [] {
    const ConstructionScope scope(c10::kMeta);
    return last_weight();
  }();
  ASSERT_TRUE(is_recorded(weight));
  const auto gauge = std::make_shared<HostGauge>();
  at::Tensor values;
  {
    const c10::DebugInfoGuard watched(c10::DebugInfoKind::PROFILER_STATE, gauge);
    values = recorded_values({weight})[0];
  }
  EXPECT_GE(gauge->peak(), kBytes);
  EXPECT_LT(gauge->peak(), 3 * kBytes);
  EXPECT_TRUE(values.equal(last_weight()));
}

}  // namespace
}  // namespace accelerate
