#include "accelerate/files/deferred_copy.h"

#include <string>
#include <thread>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace accelerate::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

at::Tensor numbers(int64_t size) { return at::arange(size, at::kFloat); }

TEST(TensorCopiesTest, AreOfMemoryWithoutGaps) {
  EXPECT_TRUE(TensorCopies::can_copy(numbers(6).reshape({2, 3})));
  EXPECT_TRUE(TensorCopies::can_copy(numbers(0)));
  EXPECT_FALSE(TensorCopies::can_copy(numbers(6).reshape({2, 3}).t()));
  EXPECT_FALSE(TensorCopies::can_copy(numbers(6).to_sparse()));
  EXPECT_FALSE(TensorCopies::can_copy(numbers(6)._neg_view())) << "other numbers";
}

TEST(TensorCopiesTest, OfAllSizesByAnyNumberOfThreads) {
  for (const int threads : {1, 2, 5}) {
    TensorCopies copies;
    std::vector<at::Tensor> sources, results;
    for (const int64_t size : {0, 1, 7, 100, 3'000'001}) {
      sources.push_back(numbers(size));
      results.push_back(at::zeros_like(sources.back()));
      copies.add(results.back(), sources.back());
    }
    copies.run(threads);
    for (size_t i = 0; i < sources.size(); ++i) EXPECT_TRUE(at::equal(sources[i], results[i]));
  }
}

TEST(DeferredCopyTest, CopiesWhatIsThereWhenItIsAskedTo) {
  DeferredCopy copy(2);
  const at::Tensor from = numbers(10), to = at::zeros({10});
  copy.add("a", to, from);
  EXPECT_EQ(to.sum().item<double>(), 0);
  copy.copy();
  EXPECT_TRUE(at::equal(to, from));
  copy.finish();
  EXPECT_TRUE(copy.status().ok());
}

TEST(DeferredCopyTest, CopiesOnce) {
  DeferredCopy copy(1);
  const at::Tensor from = numbers(10), to = at::zeros({10});
  copy.add("a", to, from);
  copy.finish();
  from.add_(1);
  copy.copy();
  copy.finish();
  EXPECT_TRUE(at::equal(to, numbers(10)));
  EXPECT_TRUE(copy.status().ok()) << "it may change from finish() on";
}

TEST(DeferredCopyTest, NamesWhatChangedTooEarly) {
  for (const bool is_copied : {false, true}) {
    DeferredCopy copy(1);
    const std::vector<at::Tensor> sources = {numbers(3), numbers(3), numbers(3)};
    for (int i = 0; i < 3; ++i) {
      copy.add(absl::StrCat("tensor ", i), at::zeros({3}), sources[i].detach());
    }
    if (is_copied) copy.copy();
    sources[1].mul_(2);
    sources[2].mul_(2);
    copy.finish();
    EXPECT_EQ(copy.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(copy.status().message()),
                AllOf(HasSubstr("\"tensor 1\" changed"), Not(HasSubstr("tensor 2"))));
  }
}

TEST(DeferredCopyTest, LetsGoOfWhatItCopied) {
  DeferredCopy copy(1);
  at::Tensor from = numbers(10);
  copy.add("a", at::zeros({10}), from);
  EXPECT_GT(from.use_count(), 1);
  copy.copy();
  EXPECT_EQ(from.use_count(), 1);
}

TEST(DeferredCopyTest, CannotWatchTensorsOfInferenceMode) {
  EXPECT_TRUE(DeferredCopy::can_watch(numbers(1)));
  const c10::InferenceMode inference;
  EXPECT_FALSE(DeferredCopy::can_watch(numbers(1)));
}

TEST(DeferredCopyTest, WhoeverComesFirstCopiesAndTheOthersWait) {
  for (int round = 0; round < 20; ++round) {
    DeferredCopy copy(2);
    const at::Tensor from = numbers(2'000'000), to = at::empty_like(from);
    copy.add("a", to, from);
    std::thread background([&] { copy.copy(); });
    copy.finish();
    EXPECT_TRUE(at::equal(to, from));
    from.zero_();
    background.join();
    EXPECT_EQ(to[-1].item<float>(), 1'999'999) << "nothing is copied after finish()";
    EXPECT_TRUE(copy.status().ok());
  }
}

}  // namespace
}  // namespace accelerate::internal
