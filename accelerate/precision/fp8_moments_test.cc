#include "accelerate/precision/fp8_moments.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace accelerate {
namespace {

using torch::Tensor;

// Gradients of a quadratic whose curvature spans orders of magnitude.
void set_gradient(const Tensor& x) {
  const Tensor curvature = torch::logspace(-3, 0, x.numel());
  x.mutable_grad() = ((x.detach() - 1) * curvature).clone();
}

template <typename Optimizer>
Tensor train(bool packs) {
  torch::manual_seed(2);
  const Tensor x = torch::randn({64}).requires_grad_();
  Optimizer optimizer({x}, 0.05);
  Fp8Moments moments(optimizer);
  for (int step = 0; step < 100; ++step) {
    set_gradient(x);
    moments.unpack();
    optimizer.step();
    if (packs) moments.pack();
  }
  return x.detach();
}

TEST(Fp8Moments, TrainNearlyAsInFloat32) {
  const Tensor packed = train<torch::optim::AdamW>(true), plain = train<torch::optim::AdamW>(false);
  EXPECT_FALSE(packed.equal(plain));
  EXPECT_LT((packed - plain).abs().max().item<double>(), 0.15);
  EXPECT_LT((train<torch::optim::Adam>(true) - train<torch::optim::Adam>(false))
                .abs()
                .max()
                .item<double>(),
            0.15);
}

TEST(Fp8Moments, TakeThreeBytesAndStayOnceTheyAreRounded) {
  const Tensor x = torch::randn({1000}).requires_grad_();
  torch::optim::AdamW optimizer({x});
  Fp8Moments moments(optimizer);
  moments.pack();  // there are none yet
  EXPECT_EQ(moments.packed_bytes(), 0);
  set_gradient(x);
  optimizer.step();
  auto& state = dynamic_cast<torch::optim::AdamWParamState&>(*optimizer.state().begin()->second);
  const Tensor first = state.exp_avg().clone(), second = state.exp_avg_sq().clone();
  moments.pack();
  moments.pack();
  EXPECT_EQ(moments.packed_bytes(), 3 * 1000 + 8);
  EXPECT_FALSE(state.exp_avg().defined());
  moments.unpack();
  moments.unpack();
  EXPECT_EQ(moments.packed_bytes(), 0);
  const Tensor once = state.exp_avg().clone(), once_sq = state.exp_avg_sq().clone();
  EXPECT_TRUE(once.allclose(first, 0.07, 1e-5));
  EXPECT_TRUE(once_sq.allclose(second, 1e-3, 1e-9));
  moments.pack();
  moments.unpack();
  EXPECT_TRUE(state.exp_avg().equal(once));
  EXPECT_TRUE(state.exp_avg_sq().equal(once_sq));
  EXPECT_EQ(state.step(), 1);
}

TEST(Fp8Moments, AreThoseOfAdam) {
  const Tensor x = torch::randn({4}).requires_grad_();
  torch::optim::SGD optimizer({x}, 0.1);
  EXPECT_THROW(Fp8Moments{optimizer}, c10::ValueError);
}

}  // namespace
}  // namespace accelerate
