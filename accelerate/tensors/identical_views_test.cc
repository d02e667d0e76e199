#include "accelerate/tensors/identical_views.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace accelerate::internal {
namespace {

TEST(IdenticalViews, AreTheSameElementsInTheSameOrder) {
  const at::Tensor x = at::arange(9, at::kFloat).view({3, 3});
  EXPECT_TRUE(are_identical_views(x, x));
  EXPECT_TRUE(are_identical_views(x, x.view({9}).view({3, 3})));
  EXPECT_TRUE(are_identical_views(x[1], x.narrow(0, 1, 1).view({3})));
  EXPECT_TRUE(are_identical_views(x, x.detach()));

  EXPECT_FALSE(are_identical_views(x, x.clone())) << "other memory";
  EXPECT_FALSE(are_identical_views(x, x.t())) << "other strides";
  EXPECT_FALSE(are_identical_views(x, x.view({9}))) << "other sizes";
  EXPECT_FALSE(are_identical_views(x[0], x[1])) << "another offset";
  EXPECT_FALSE(are_identical_views(x, x.view(at::kInt))) << "another dtype";
}

TEST(IdenticalViews, AreNotConjugateOrNegative) {
  const at::Tensor x = at::ones({2}, at::kComplexFloat);
  EXPECT_FALSE(are_identical_views(x, x.conj()));
  EXPECT_TRUE(are_identical_views(x, x.conj().conj()));
  EXPECT_FALSE(are_identical_views(x, at::_neg_view(x)));
}

TEST(IdenticalViews, AreKnownWithoutMemory) {
  const at::Tensor x = at::empty({3}, at::kMeta);
  EXPECT_TRUE(are_identical_views(x, x.view({3})));
  EXPECT_FALSE(are_identical_views(x, at::empty({3}, at::kMeta)));
  const at::Tensor sparse = at::ones({2}).to_sparse();
  EXPECT_FALSE(are_identical_views(sparse, sparse));
}

}  // namespace
}  // namespace accelerate::internal
