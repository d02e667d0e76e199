#include "accelerate/parallel/experts/expert_technique.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace accelerate {
namespace {

// A model is prepared again, and a parameter may be frozen.
TEST(ExpertParallelTechnique, DividesGradientsByTheSharesAsLongAsItIsThere) {
  const at::Tensor trained = torch::ones({2}).requires_grad_(), frozen = torch::ones({2});
  const auto gradient = [&] {
    trained.mutable_grad() = at::Tensor();
    (trained * 6 + frozen).sum().backward();
    return trained.grad()[0].item<double>();
  };
  {
    const ExpertParallelTechnique technique({trained, frozen}, /*token_shares=*/4);
    EXPECT_EQ(gradient(), 1.5);
  }
  EXPECT_EQ(gradient(), 6);
  const ExpertParallelTechnique of_one_share({trained}, /*token_shares=*/1);
  EXPECT_EQ(gradient(), 6);
}

}  // namespace
}  // namespace accelerate
