#include "accelerate/tensors/tensor_memory.h"

#include <utility>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

namespace accelerate::internal {
namespace {

TEST(FreshTensor, IsAsAskedFor) {
  for (const int64_t rows : {0, 3, 1 << 20}) {
    const at::Tensor tensor = fresh_tensor({rows, 2}, at::kDouble);
    EXPECT_EQ(tensor.sizes(), at::IntArrayRef({rows, 2}));
    EXPECT_EQ(tensor.scalar_type(), at::kDouble);
    EXPECT_TRUE(tensor.is_contiguous());
    tensor.fill_(1);
    EXPECT_EQ(tensor.sum().item<double>(), static_cast<double>(2 * rows));
  }
  EXPECT_TRUE(fresh_tensor({4}, at::TensorOptions(at::kMeta)).is_meta());
}

TEST(ConformToParameter, IsTheTensorItselfWhereNothingElseHoldsIt) {
  const at::Tensor parameter = at::zeros({2, 3});
  at::Tensor saved = at::ones({2, 3});
  const void* memory = saved.const_data_ptr();
  const at::Tensor taken = conform_to_parameter(std::move(saved), parameter, at::kFloat, false);
  EXPECT_EQ(taken.const_data_ptr(), memory);
  // In another order, as it lies.
  const at::Tensor turned = at::zeros({3, 2}).t();
  saved = at::empty_strided({2, 3}, {1, 2});
  memory = saved.const_data_ptr();
  EXPECT_EQ(conform_to_parameter(std::move(saved), turned, at::kFloat, true).const_data_ptr(),
            memory);
}

// With shared memory, a write to the parameter would change the caller's tensor.
TEST(ConformToParameter, IsACopyOfWhatOthersHold) {
  const at::Tensor parameter = at::zeros({2, 3});
  const at::Tensor held = at::ones({2, 3});
  at::Tensor taken = conform_to_parameter(held, parameter, at::kFloat, false);
  taken.zero_();
  EXPECT_TRUE(held.eq(1).all().item<bool>());

  // The memory alone.
  at::Tensor saved = at::ones({2, 3});
  const at::Tensor view = at::empty({0}).set_(saved.storage(), 0, {6}, {1});
  taken = conform_to_parameter(std::move(saved), parameter, at::kFloat, false);
  taken.zero_();
  EXPECT_TRUE(view.eq(1).all().item<bool>());
}

TEST(ConformToParameter, HasTheDtypeAndTheOrderThatAreAskedFor) {
  const at::Tensor turned = at::zeros({3, 2}).t();
  const at::Tensor values = at::arange(6, at::kFloat).view({2, 3});
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (const bool like_parameter : {false, true}) {
      for (const bool saved_turned : {false, true}) {
        at::Tensor saved = saved_turned ? values.t().contiguous().t() : values.clone();
        const at::Tensor taken =
            conform_to_parameter(std::move(saved), turned, dtype, like_parameter);
        EXPECT_EQ(taken.scalar_type(), dtype);
        EXPECT_EQ(taken.strides(), like_parameter ? turned.strides() : values.strides());
        EXPECT_TRUE(at::equal(taken, values.to(dtype)));
      }
    }
  }
}

// The memory of these views holds other numbers.
TEST(WithoutFlags, HasTheNumbersInItsMemory) {
  const at::Tensor plain = at::arange(3, at::kFloat);
  EXPECT_TRUE(without_flags(plain).is_same(plain));
  const at::Tensor negated = without_flags(plain._neg_view());
  EXPECT_FALSE(negated.is_neg());
  EXPECT_EQ(negated.const_data_ptr<float>()[2], -2);
  const at::Tensor pair = at::complex(plain, plain);
  for (const at::Tensor& imaginary :
       {without_flags(at::imag(pair.conj())), at::imag(without_flags(pair.conj()))}) {
    EXPECT_FALSE(imaginary.is_neg());
    EXPECT_EQ(imaginary.contiguous().const_data_ptr<float>()[1], -1);
  }
}

TEST(ConformToParameter, HasNoFlags) {
  const at::Tensor parameter = at::zeros({3});
  const at::Tensor taken =
      conform_to_parameter(at::arange(3, at::kFloat)._neg_view(), parameter, at::kFloat, true);
  EXPECT_FALSE(taken.is_neg());
  EXPECT_TRUE(at::equal(taken, -at::arange(3, at::kFloat)));
}

TEST(ConformToParameter, HasNoGradient) {
  const at::Tensor parameter = at::zeros({2}).requires_grad_(true);
  const at::Tensor taken =
      conform_to_parameter(at::ones({2}).requires_grad_(true), parameter, at::kFloat, true);
  EXPECT_FALSE(taken.requires_grad());
  EXPECT_TRUE(taken.eq(1).all().item<bool>());
}

TEST(Rebind, IsSeenByAllWhoHoldTheTensor) {
  const at::Tensor tensor = at::zeros({2}).requires_grad_(true);
  const at::Tensor holder = tensor;
  const at::Tensor values = at::ones({3, 2}, at::kDouble);
  rebind(tensor, values);
  EXPECT_EQ(holder.sizes(), values.sizes());
  EXPECT_EQ(holder.scalar_type(), at::kDouble);
  EXPECT_EQ(holder.const_data_ptr(), values.const_data_ptr());
  EXPECT_TRUE(holder.requires_grad());
  EXPECT_FALSE(values.requires_grad());
  const at::Tensor on_meta = at::empty({2}, at::kMeta);
  rebind(on_meta, at::ones({2}));
  EXPECT_TRUE(on_meta.eq(1).all().item<bool>());
}

TEST(Rebind, KeepsAGradientThatFitsAlone) {
  struct Row {
    at::Tensor values;
    bool fits;
  };
  for (const Row& row :
       {Row{at::ones({2}), true}, Row{at::ones({3}), false}, Row{at::ones({2, 1}), false},
        Row{at::ones({2}, at::kDouble), false}, Row{at::empty({2}, at::kMeta), false}}) {
    const at::Tensor tensor = at::zeros({2}).requires_grad_(true);
    tensor.mutable_grad() = at::ones({2});
    rebind(tensor, row.values);
    EXPECT_EQ(tensor.grad().defined(), row.fits) << row.values.sizes();
  }
}

// A graph that is alive keeps what it made for gradients of the tensor as it was.
TEST(Rebind, TakesGradientsOfItsNewSizesAndDtype) {
  for (const bool is_inference : {false, true}) {
    const at::Tensor tensor = at::zeros({2}).requires_grad_(true);
    const at::Tensor graph = tensor * 2;
    const c10::InferenceMode mode(is_inference);
    const at::Tensor values = at::ones({3}, at::kDouble);
    {
      const c10::InferenceMode training(false);
      rebind(tensor, values);
      EXPECT_FALSE(tensor.is_inference());
      (tensor * 3).sum().backward();
      EXPECT_TRUE(at::equal(tensor.grad(), at::full({3}, 3, at::kDouble)));
    }
    EXPECT_EQ(graph.numel(), 2);
  }
}

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
