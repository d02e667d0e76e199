#include "accelerate/precision/fp8_moments.h"

#include <cmath>
#include <limits>
#include <sstream>
#include <string>
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
  EXPECT_EQ(moments.packed_bytes(), 3 * 1000 + 2 * 4 * 8);  // 8 blocks
  EXPECT_FALSE(state.exp_avg().defined());
  moments.unpack();
  moments.unpack();
  EXPECT_EQ(moments.packed_bytes(), 0);
  const Tensor once = state.exp_avg().clone(), once_sq = state.exp_avg_sq().clone();
  EXPECT_TRUE(once.allclose(first, 0.126, 1e-5));
  EXPECT_TRUE(once_sq.allclose(second, 2e-3, 1e-9));
  moments.pack();
  moments.unpack();
  EXPECT_TRUE(state.exp_avg().equal(once));
  EXPECT_TRUE(state.exp_avg_sq().equal(once_sq));
  EXPECT_EQ(state.step(), 1);
}

// Updates, in learning rates, of parameters whose gradients are 1e-4: float32's are 1. The first
// value's gradient in the fourth step is `outlier`. Shapes: [steps, size].
Tensor updates(int64_t size, int steps, double outlier) {
  const double lr = 1e-3;
  const Tensor x = torch::zeros({size}).requires_grad_();
  torch::optim::Adam optimizer({x}, torch::optim::AdamOptions(lr).eps(1e-12));
  Fp8Moments moments(optimizer);
  std::vector<Tensor> all;
  for (int step = 0; step < steps; ++step) {
    x.mutable_grad() = torch::full({size}, 1e-4);
    if (step == 3) x.grad()[0] = outlier;
    const Tensor before = x.detach().clone();
    moments.unpack();
    optimizer.step();
    moments.pack();
    all.push_back((before - x.detach()) / lr);
  }
  return torch::stack(all);
}

double largest(const Tensor& tensor) { return tensor.max().item<double>(); }
double mean_of(const Tensor& tensor) { return tensor.mean().item<double>(); }

TEST(Fp8Moments, DoNotStallShortOfAConstantGradient) {
  const Tensor all = updates(300, 1200, 1e-4), late = all.narrow(0, 1000, 200);
  EXPECT_NEAR(mean_of(late), 1, 0.01);
  EXPECT_LT(largest((late.mean(0) - 1).abs()), 0.01);
  EXPECT_LT(largest((all - 1).abs()), 1. / 6);
}

TEST(Fp8Moments, DoNotThrowTheNeighboursOfAnOutlier) {
  for (const double outlier : {1e4, 1e8}) {
    const Tensor all = updates(300, 600, outlier);
    EXPECT_LT(largest(all.narrow(1, 1, 299)), 7. / 6) << outlier;
    // Other blocks know nothing of it.
    EXPECT_TRUE(all.narrow(1, 128, 172).equal(updates(300, 600, 1e-4).narrow(1, 128, 172)));
  }
  // Its own has recovered.
  EXPECT_NEAR(mean_of(updates(300, 600, 1e4).narrow(0, 500, 100).narrow(1, 1, 127)), 1, 0.05);
}

std::string saved(const torch::optim::Optimizer& optimizer) {
  std::ostringstream stream;
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  archive.save_to(stream);
  return stream.str();
}

void load(torch::optim::Optimizer& optimizer, const std::string& text) {
  std::istringstream stream(text);
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  optimizer.load(archive);
}

TEST(Fp8Moments, GiveWayToThoseThatWereLoaded) {
  const Tensor x = torch::randn({200}).requires_grad_();
  torch::optim::AdamW optimizer({x});
  Fp8Moments moments(optimizer);
  set_gradient(x);
  optimizer.step();
  const std::string good = saved(optimizer);
  const auto first = [&] {
    return dynamic_cast<torch::optim::AdamWParamState&>(*optimizer.state().begin()->second)
        .exp_avg();
  };
  const Tensor expected = first().clone();
  optimizer.step();
  moments.pack();
  const std::string empty = saved(optimizer);
  load(optimizer, good);
  moments.unpack();
  EXPECT_TRUE(first().equal(expected));
  EXPECT_EQ(moments.packed_bytes(), 0);

  moments.pack();
  load(optimizer, empty);  // saved while they were packed
  EXPECT_THROW(moments.unpack(), c10::ValueError);
  load(optimizer, good);
  moments.unpack();
  EXPECT_TRUE(first().equal(expected));

  moments.pack();
  optimizer.state().clear();
  moments.pack();
  EXPECT_EQ(moments.packed_bytes(), 0);
  moments.unpack();
  EXPECT_TRUE(optimizer.state().empty());
}

TEST(Fp8Moments, HaveAnyShapeAndDoNotHideWhatIsNotFinite) {
  const Tensor matrix = torch::randn({7, 33}).t().requires_grad_(),
               empty = torch::zeros({0}).requires_grad_(),
               scalar = torch::ones({}).requires_grad_();
  torch::optim::Adam optimizer({matrix, empty, scalar});
  Fp8Moments moments(optimizer);
  for (const Tensor& x : {matrix, empty, scalar}) x.mutable_grad() = torch::ones_like(x);
  matrix.grad()[2][3] = std::numeric_limits<float>::infinity();
  for (int step = 0; step < 3; ++step) {
    moments.unpack();
    optimizer.step();
    moments.pack();
  }
  EXPECT_FALSE(matrix.detach()[2][3].isfinite().item<bool>());
  EXPECT_TRUE(scalar.isfinite().item<bool>());
}

TEST(Fp8Moments, AreThoseOfAdam) {
  const Tensor x = torch::randn({4}).requires_grad_();
  torch::optim::SGD optimizer({x}, 0.1);
  EXPECT_THROW(Fp8Moments{optimizer}, c10::ValueError);
}

}  // namespace
}  // namespace accelerate
