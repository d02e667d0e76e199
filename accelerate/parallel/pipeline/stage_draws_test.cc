#include "accelerate/parallel/pipeline/window.h"

#include <stdexcept>
#include <vector>

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include "accelerate/runtime/runtime.h"
#include "accelerate/testing/fake_runtime.h"

namespace accelerate {
namespace {

class DrawsOfStages : public ::testing::Test {
 protected:
  static at::Tensor drawn(const StageDraws& window, int stage, int micro_batch, int64_t count = 8) {
    at::Tensor numbers;
    window.run(stage, micro_batch, [&] { numbers = at::rand({count}); });
    return numbers;
  }

  FakeRuntime runtime_;
  const RuntimeScope scope_{runtime_};
};

TEST_F(DrawsOfStages, AreThoseOfAStageAndAMicroBatchInAnyOrder) {
  torch::manual_seed(3);
  const StageDraws window;
  std::vector<at::Tensor> all;
  for (int stage = 0; stage < 3; ++stage) {
    for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
      const at::Tensor numbers = drawn(window, stage, micro_batch);
      for (const at::Tensor& other : all) {
        EXPECT_FALSE(numbers.equal(other)) << stage << " " << micro_batch;
      }
      all.push_back(numbers);
    }
  }
  EXPECT_TRUE(drawn(window, 2, 1).equal(all[7]));
  EXPECT_TRUE(drawn(window, 0, 0).equal(all[0]));
  // A rank with other stages has the same ones.
  torch::manual_seed(3);
  EXPECT_TRUE(drawn(StageDraws(), 1, 2).equal(all[5]));
}

TEST_F(DrawsOfStages, OfTwoWindowsDiffer) {
  torch::manual_seed(3);
  const at::Tensor first = drawn(StageDraws(), 0, 0);
  const at::Tensor second = drawn(StageDraws(), 0, 0);
  EXPECT_FALSE(first.equal(second));
}

// The number of draws does not count, nor does a stage that throws.
TEST_F(DrawsOfStages, LeaveTheCommonStreamWhereItWas) {
  torch::manual_seed(3);
  {
    const StageDraws window;
  }
  const at::Tensor next = at::rand({8});
  torch::manual_seed(3);
  {
    const StageDraws window;
    drawn(window, 0, 0, 100);
    drawn(window, 1, 2, 7);
    EXPECT_THROW(window.run(0, 1,
                            [] {
                              at::rand({5});
                              throw std::runtime_error("a stage");
                            }),
                 std::runtime_error);
  }
  EXPECT_TRUE(at::rand({8}).equal(next));
}

}  // namespace
}  // namespace accelerate
