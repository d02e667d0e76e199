#include "accelerate/parallel/gradient_sums.h"

#include <string>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/testing/threaded_group.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;

at::Tensor with_gradient(at::Tensor gradient) {
  at::Tensor trained = at::zeros_like(gradient).requires_grad_();
  trained.mutable_grad() = std::move(gradient);
  return trained;
}

// A backward pass, which `adds` to gradients.
template <typename Adds>
void pass(GradientSums& sums, bool synchronises, const Adds& adds) {
  sums.begin();
  adds();
  sums.end(synchronises);
}

// One rank has a large number in each element, and the others 1, which half precision loses beside
// it. Another rank has the large number in the next element, so that no order of additions keeps
// all of them.
TEST(GradientSums, AddHalfPrecisionUpInFloat32) {
  run_ranks(3, [](const ProcessGroupPtr& group) {
    const at::Tensor is_large = at::arange(96).remainder(3).eq(group->getRank());
    for (const auto& [dtype, large] :
         {std::pair(at::kHalf, 2048.0), std::pair(at::kBFloat16, 256.0)}) {
      const at::Tensor trained = with_gradient(at::where(is_large, large, 1.0).to(dtype));
      const std::vector<GradientSums::Owed> owed = {
          {.group = group, .trained = {{"weight", trained}}}};
      GradientSums sums(owed);
      pass(sums, /*synchronises=*/true, [] {});
      EXPECT_EQ(trained.grad().scalar_type(), dtype);
      EXPECT_TRUE(trained.grad().to(at::kDouble).eq(large + 2).all().item<bool>()) << dtype;
    }
  });
}

// Half precision travels with float32, and gradients lie as they may.
TEST(GradientSums, AreOfEachTensorWhateverItsDtypeAndItsStrides) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const double own = group->getRank() + 1;
    const at::Tensor counted = at::arange(6.0).view({2, 3});
    const std::vector<at::Tensor> addends = {counted, counted.to(at::kDouble) + 10,
                                             (counted + 20).to(at::kHalf), (counted + 30).t()};
    std::vector<GradientSums::Owed> owed = {{.group = group}, {.group = group}};
    for (size_t i = 0; i < addends.size(); ++i) {
      owed[i / 3].trained.emplace_back(std::to_string(i), with_gradient(addends[i] * own));
    }
    GradientSums sums(owed);
    pass(sums, /*synchronises=*/true, [] {});
    for (size_t i = 0; i < addends.size(); ++i) {
      const at::Tensor& gradient = owed[i / 3].trained[i % 3].second.grad();
      EXPECT_EQ(gradient.scalar_type(), addends[i].scalar_type()) << i;
      EXPECT_TRUE(gradient.equal(addends[i] * 3)) << i;
    }
  });
}

TEST(GradientSums, TakeNothingForARankWithoutAGradient) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const at::Tensor trained = at::zeros({2}).requires_grad_();
    const at::Tensor always = with_gradient(at::ones({3}));
    const at::Tensor frozen = at::zeros({2});
    const std::vector<GradientSums::Owed> owed = {
        {.group = group, .trained = {{"weight", trained}, {"always", always}, {"frozen", frozen}}}};
    GradientSums sums(owed);
    pass(sums, /*synchronises=*/true, [&] {
      if (group->getRank() == 1) trained.mutable_grad() = at::full({2}, 5.0);
    });
    EXPECT_TRUE(trained.grad().equal(at::full({2}, 5.0)));
    EXPECT_TRUE(always.grad().equal(at::full({3}, 2.0)));
    EXPECT_FALSE(frozen.grad().defined());
  });
}

// What is summed of a gradient stays apart from the gradient's own memory.
TEST(GradientSums, SendWhatALaterPassAddsAlone) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const at::Tensor trained = with_gradient(at::ones({2}));
    const std::vector<GradientSums::Owed> owed = {
        {.group = group, .trained = {{"weight", trained}}}};
    GradientSums sums(owed);
    const double own = group->getRank() + 1;
    pass(sums, /*synchronises=*/true, [] {});
    pass(sums, /*synchronises=*/false, [&] { trained.mutable_grad().add_(own); });
    EXPECT_TRUE(trained.grad().equal(at::full({2}, 2 + own)));
    pass(sums, /*synchronises=*/true, [&] { trained.mutable_grad().add_(10 * own); });
    EXPECT_TRUE(trained.grad().equal(at::full({2}, 2 + 3 + 30.0)));
    trained.mutable_grad().zero_();
    pass(sums, /*synchronises=*/true, [&] { trained.mutable_grad().add_(own); });
    EXPECT_TRUE(trained.grad().equal(at::full({2}, 3.0)));
  });
}

// As a job that is saved within an accumulation window, and goes on with its gradients.
TEST(GradientSums, GoOnWithWhatWasSummedOfTheSameGradients) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const auto owed = [&group](const at::Tensor& weight, const at::Tensor& bias) {
      return std::vector<GradientSums::Owed>{
          {.group = group, .trained = {{"weight", weight}, {"bias", bias}}}};
    };
    const at::Tensor weight = with_gradient(at::ones({2})), bias = with_gradient(at::ones({3}));
    GradientSums saved(owed(weight, bias));
    EXPECT_TRUE(saved.summed().empty()) << "nothing is summed yet";
    const double own = group->getRank() + 1;
    pass(saved, /*synchronises=*/true, [] {});
    pass(saved, /*synchronises=*/false, [&] { weight.mutable_grad().add_(own); });
    EXPECT_EQ(saved.summed().size(), 2);
    // A sum is forgotten when other code has changed the gradient since.
    bias.mutable_grad().zero_();
    const NamedTensors summed = saved.summed();
    ASSERT_EQ(summed.size(), 1);
    EXPECT_EQ(summed[0].first, "weight");
    EXPECT_TRUE(summed[0].second.equal(at::full({2}, 2.0)));

    const at::Tensor again = with_gradient(weight.grad().clone());
    const at::Tensor other = with_gradient(bias.grad().clone());
    GradientSums loaded(owed(again, other));
    loaded.set_summed(summed);
    pass(loaded, /*synchronises=*/true, [&] {
      again.mutable_grad().add_(10 * own);
      other.mutable_grad().add_(own);
    });
    EXPECT_TRUE(again.grad().equal(at::full({2}, 2 + 3 + 30.0)));
    EXPECT_TRUE(other.grad().equal(at::full({3}, 3.0)));
    loaded.set_summed({});
    pass(loaded, /*synchronises=*/true, [] {});
    EXPECT_TRUE(again.grad().equal(at::full({2}, 2 * 35.0))) << "of which nothing was known";
    EXPECT_THAT(value_error_of([&] { loaded.set_summed({{"weight", at::ones({3})}}); }),
                HasSubstr("\"weight\" has sizes [3], and the gradient [2]"));
  });
}

}  // namespace
}  // namespace accelerate
