#include "accelerate/comm/operations.h"

#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/testing/threaded_group.h"

namespace accelerate {
namespace {

using torch::Tensor;

TEST(AverageTensors, TakesAllDtypesShapesAndSizes) {
  run_ranks(3, [](const ProcessGroupPtr& group) {
    const double rank = group->getRank();
    const auto filled = [&](std::vector<int64_t> shape, at::ScalarType dtype) {
      return torch::full(shape, rank + 1, torch::kFloat).to(dtype);
    };
    Tensor strided = filled({4, 6}, torch::kFloat).t();
    Tensor part = torch::zeros({5});
    part.narrow(0, 1, 2).fill_(rank);
    const std::vector<Tensor> tensors{filled({3}, torch::kFloat),
                                      filled({2, 2}, torch::kDouble),
                                      filled({}, torch::kFloat),
                                      filled({0, 3}, torch::kFloat),
                                      filled({7}, torch::kHalf),
                                      filled({7}, torch::kBFloat16),
                                      filled({2}, torch::kComplexFloat),
                                      strided,
                                      filled({7'000'000}, torch::kFloat),  // more than a buffer
                                      filled({3}, torch::kFloat).requires_grad_()};
    average_tensors(group, tensors);
    for (const Tensor& tensor : tensors) {
      if (tensor.numel() == 0) continue;
      EXPECT_LT((tensor.detach() - 2).abs().max().item<double>(), 1e-2) << tensor.scalar_type();
    }
    average_tensors(group, {part.narrow(0, 1, 2)});
    EXPECT_TRUE(torch::allclose(part, torch::tensor({0., 1., 1., 0., 0.}, torch::kFloat)));
    average_tensors(group, {});
  });
}

TEST(AverageTensors, RefusesWhatHasNoMean) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    EXPECT_THROW(average_tensors(group, {torch::zeros({2}, torch::kLong)}), c10::ValueError);
    EXPECT_THROW(average_tensors(group, {Tensor()}), c10::ValueError);
    EXPECT_THROW(average_tensors(group, {torch::eye(2).to_sparse()}), c10::ValueError);
  });
  const Tensor alone = torch::full({2}, 3.);
  average_tensors(nullptr, {alone});
  EXPECT_EQ(alone.sum().item<double>(), 6);
}

TEST(AverageGradients, CountsAMissingGradientAsZero) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const int rank = group->getRank();
    auto parameter = [] { return torch::zeros({2, 3}).requires_grad_(); };
    Tensor both = parameter(), one = parameter(), none = parameter();
    Tensor frozen = torch::zeros({2});
    both.mutable_grad() = torch::full({2, 3}, 1. + 2 * rank);
    const Tensor kept = both.grad();
    if (rank == 1) one.mutable_grad() = torch::full({2, 3}, 4.);
    average_gradients(group, {both, one, none, frozen, both});
    EXPECT_TRUE(torch::allclose(both.grad(), torch::full({2, 3}, 2.)));
    EXPECT_TRUE(kept.is_same(both.grad()));
    EXPECT_TRUE(torch::allclose(one.grad(), torch::full({2, 3}, 2.)));
    EXPECT_FALSE(none.grad().defined());
    EXPECT_FALSE(frozen.grad().defined());
  });
}

TEST(AverageGradients, TakesSparseInfiniteAndHalfGradients) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const int rank = group->getRank();
    Tensor table = torch::zeros({3, 2}).requires_grad_();
    table.mutable_grad() = (torch::eye(3).narrow(1, 0, 2) * (rank + 1)).to_sparse();
    Tensor half = torch::zeros({2}, torch::kHalf).requires_grad_();
    half.mutable_grad() = torch::full({2}, rank == 0 ? INFINITY : 1.).to(torch::kHalf);
    Tensor late = torch::zeros({2}, torch::kHalf).requires_grad_();
    if (rank == 0) late.mutable_grad() = torch::full({2}, NAN).to(torch::kHalf);
    average_gradients(group, {table, half, late});
    EXPECT_TRUE(torch::allclose(table.grad(), torch::eye(3).narrow(1, 0, 2) * 1.5));
    EXPECT_TRUE(torch::isinf(half.grad()).all().item<bool>());
    EXPECT_TRUE(torch::isnan(late.grad()).all().item<bool>());
  });
}

TEST(AverageGradients, FillsManyBuffers) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    std::vector<Tensor> parameters;
    for (int i = 0; i < 40; ++i) {
      parameters.push_back(torch::zeros({500'000}).requires_grad_());
      if ((i + group->getRank()) % 3 != 0) {
        parameters.back().mutable_grad() = torch::full({500'000}, 1. + i + group->getRank());
      }
    }
    average_gradients(group, parameters);
    for (int i = 0; i < 40; ++i) {
      double mean = 0;
      for (int rank = 0; rank < 2; ++rank) mean += (i + rank) % 3 != 0 ? (1. + i + rank) / 2 : 0;
      EXPECT_TRUE(torch::allclose(parameters[i].grad(), torch::full({500'000}, mean))) << i;
    }
  });
}

}  // namespace
}  // namespace accelerate
