#include "accelerate/precision/autocast.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

using ::testing::HasSubstr;

at::ScalarType type_of_a_product() {
  return at::mm(at::ones({2, 2}), at::ones({2, 2})).scalar_type();
}

TEST(Autocast, ComputesProductsInTheJobsPrecision) {
  EXPECT_FALSE(autocast_settings(PrecisionType::kNo, at::kCPU));
  {
    AutocastScope scope(autocast_settings(PrecisionType::kBf16, at::kCPU));
    EXPECT_EQ(type_of_a_product(), at::kBFloat16);
  }
  {
    AutocastScope scope(autocast_settings(PrecisionType::kFp16, at::kCPU));
    EXPECT_EQ(type_of_a_product(), at::kHalf);
  }
  {
    AutocastScope scope(std::nullopt);
    EXPECT_EQ(type_of_a_product(), at::kFloat);
  }
  EXPECT_EQ(type_of_a_product(), at::kFloat);
}

TEST(Autocast, ScopesNestAndRestoreWhatWasOutside) {
  AutocastScope outer(autocast_settings(PrecisionType::kBf16, at::kCPU));
  {
    AutocastScope inner(autocast_settings(PrecisionType::kBf16, at::kCPU, {.enabled = false}));
    EXPECT_EQ(type_of_a_product(), at::kFloat);
    EXPECT_THROW(
        {
          AutocastScope innermost(autocast_settings(PrecisionType::kFp16, at::kCPU));
          at::mm(at::ones({2, 3}), at::ones({2, 3}));
        },
        c10::Error);
    EXPECT_EQ(type_of_a_product(), at::kFloat);
  }
  EXPECT_EQ(type_of_a_product(), at::kBFloat16);
}

TEST(Autocast, KeepsCastWeightsUntilTheOutermostScopeEnds) {
  const at::Tensor weight = at::ones({2, 2}).requires_grad_(true);
  auto cast_by = [&](std::optional<bool> cache) {
    AutocastScope outer(
        autocast_settings(PrecisionType::kBf16, at::kCPU, {.cache_enabled = cache}));
    at::Tensor first = at::autocast::cached_cast(at::kBFloat16, weight, at::kCPU);
    {
      AutocastScope inner(autocast_settings(PrecisionType::kBf16, at::kCPU));
    }
    return first.is_same(at::autocast::cached_cast(at::kBFloat16, weight, at::kCPU));
  };
  EXPECT_TRUE(cast_by(std::nullopt));
  EXPECT_FALSE(cast_by(false));
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
}

// An evaluation inside of a scope that trains.
TEST(Autocast, GivesNoCastsWithoutAGraphToPassesWithGradients) {
  const at::Tensor weight = at::ones({2, 2}).requires_grad_(true);
  const AutocastScope outer(autocast_settings(PrecisionType::kBf16, at::kCPU));
  {
    const at::NoGradGuard no_grad;
    const AutocastScope inner(autocast_settings(PrecisionType::kBf16, at::kCPU));
    at::autocast::cached_cast(at::kBFloat16, weight, at::kCPU);
  }
  EXPECT_TRUE(at::autocast::cached_cast(at::kBFloat16, weight, at::kCPU).requires_grad());
}

TEST(Autocast, CastsWeightsAnewWhereTheyChangeInsideOfAScope) {
  const at::Tensor weight = at::ones({2, 2}).requires_grad_(true);
  drop_cast_weights();
  const AutocastScope scope(autocast_settings(PrecisionType::kBf16, at::kCPU));
  at::autocast::cached_cast(at::kBFloat16, weight, at::kCPU);
  {
    const at::NoGradGuard no_grad;
    weight.fill_(2);
  }
  drop_cast_weights();
  const at::Tensor cast = at::autocast::cached_cast(at::kBFloat16, weight, at::kCPU);
  EXPECT_TRUE(cast.eq(2).all().item<bool>());
}

TEST(Autocast, ComputesInBfloat16WhatAnFp8JobDoesNotComputeInFp8) {
  AutocastScope scope(autocast_settings(PrecisionType::kFp8, at::kCPU));
  EXPECT_EQ(type_of_a_product(), at::kBFloat16);
}

// An optimizer steps between them.
TEST(Autocast, CastsWeightsAnewInTheNextOutermostScope) {
  const at::Tensor weight = at::ones({2, 2}).requires_grad_(true);
  const auto cast = [&] {
    AutocastScope outer(autocast_settings(PrecisionType::kBf16, at::kCPU));
    AutocastScope inner(autocast_settings(PrecisionType::kBf16, at::kCPU));
    return at::autocast::cached_cast(at::kBFloat16, weight, at::kCPU);
  };
  EXPECT_TRUE(cast().eq(1).all().item<bool>());
  {
    const at::NoGradGuard no_grad;
    weight.fill_(2);
  }
  EXPECT_TRUE(cast().eq(2).all().item<bool>());
}

TEST(Autocast, DevicesWithoutItAreNamed) {
  try {
    autocast_settings(PrecisionType::kBf16, c10::kVulkan);
    FAIL();
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what(), HasSubstr("for vulkan devices"));
  }
}

}  // namespace
}  // namespace accelerate
