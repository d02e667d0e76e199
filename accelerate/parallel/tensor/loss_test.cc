#include "accelerate/parallel/tensor/loss.h"

#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Formatting.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/base/shard_rows.h"
#include "accelerate/comm/watch/collective_call.h"
#include "accelerate/testing/threaded_group.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using at::Reduction::Mean;
using at::Reduction::None;
using at::Reduction::Sum;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Sizes = std::vector<int64_t>;

int64_t class_dim(const at::Tensor& logits) { return logits.dim() > 1 ? 1 : 0; }

// This rank's classes of the logits, or of their gradient.
at::Tensor part_of(const at::Tensor& logits, const ProcessGroupPtr& group) {
  const int64_t dim = class_dim(logits);
  const ShardRows own = shard_rows(logits.size(dim), size_of(group), rank_of(group));
  return logits.narrow(dim, own.first, own.count);
}

at::Tensor logits_of(const Sizes& sizes, at::ScalarType dtype = at::kDouble) {
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  return at::arange(numel, at::kDouble).mul(1.7).sin().mul(4).view(sizes).to(dtype);
}

// Every class in turn.
at::Tensor targets_of(const at::Tensor& logits) {
  const int64_t dim = class_dim(logits);
  Sizes sizes = logits.sizes().vec();
  sizes.erase(sizes.begin() + dim);
  return at::arange(logits.numel() / logits.size(dim))
      .mul(5)
      .remainder(logits.size(dim))
      .view(sizes);
}

struct Outcome {
  at::Tensor loss;
  at::Tensor gradient;  // of the logits, or of the rank's part of them
};

// `loss_of` logits, and their gradient where tokens count differently.
template <typename LossOf>
Outcome outcome_of(const at::Tensor& logits, const LossOf& loss_of) {
  const at::Tensor leaf = logits.detach().clone().requires_grad_();
  const at::Tensor loss = loss_of(leaf);
  loss.backward(at::arange(loss.numel(), loss.options()).add(0.5).view(loss.sizes()));
  return {.loss = loss.detach(), .gradient = leaf.grad()};
}

Outcome parallel(const ProcessGroupPtr& group, const at::Tensor& logits, const at::Tensor& target,
                 const CrossEntropyOptions& options) {
  return outcome_of(part_of(logits, group), [&](const at::Tensor& part) {
    return parallel_cross_entropy(part, target, options, group, logits.size(class_dim(logits)));
  });
}

Outcome whole(const at::Tensor& logits, const at::Tensor& target,
              const CrossEntropyOptions& options) {
  return outcome_of(logits, [&](const at::Tensor& leaf) {
    const std::optional<at::Tensor> weight =
        options.weight.defined() ? std::optional(options.weight) : std::nullopt;
    return at::cross_entropy_loss(leaf, target, weight, options.reduction, options.ignore_index,
                                  options.label_smoothing);
  });
}

void expect_as_whole(const ProcessGroupPtr& group, const at::Tensor& logits,
                     const at::Tensor& target, const CrossEntropyOptions& options,
                     const std::string& what, double tolerance = 1e-12) {
  const Outcome actual = parallel(group, logits, target, options);
  const Outcome expected = whole(logits, target, options);
  EXPECT_EQ(actual.loss.scalar_type(), expected.loss.scalar_type()) << what;
  EXPECT_EQ(actual.loss.sizes(), expected.loss.sizes()) << what;
  EXPECT_TRUE(at::allclose(actual.loss, expected.loss, tolerance, tolerance, /*equal_nan=*/true))
      << what << ": " << actual.loss << " against " << expected.loss;
  EXPECT_TRUE(at::allclose(actual.gradient, part_of(expected.gradient, group), tolerance, tolerance,
                           /*equal_nan=*/true))
      << what << ": " << actual.gradient << " against " << part_of(expected.gradient, group);
}

// With 12 classes three and four ranks have as many each, with 10 the last one has fewer.
TEST(ParallelCrossEntropy, EqualsThatOfWholeLogitsWithAllOptions) {
  for (const int ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [&](const ProcessGroupPtr& group) {
      for (const Sizes& sizes : {Sizes{12}, Sizes{7, 12}, Sizes{7, 10}, Sizes{2, 12, 3}}) {
        const at::Tensor logits = logits_of(sizes);
        const at::Tensor target = targets_of(logits);
        const int64_t classes = logits.size(class_dim(logits));
        for (const at::Tensor& weight :
             {at::Tensor(), at::arange(classes, at::kDouble).add(1).div(8)}) {
          for (const auto reduction : {None, Mean, Sum}) {
            for (const int64_t ignored : {-100, 5}) {
              for (const double smoothing : {0.0, 0.1, 1.0}) {
                expect_as_whole(group, logits, target,
                                {.weight = weight,
                                 .reduction = reduction,
                                 .ignore_index = ignored,
                                 .label_smoothing = smoothing},
                                absl::StrCat(ranks, " ranks, ", classes, " classes, ", sizes.size(),
                                             " dims, weight ", weight.defined(), ", reduction ",
                                             static_cast<int>(reduction), ", ignored ", ignored,
                                             ", smoothing ", smoothing));
              }
            }
          }
        }
      }
    });
  }
}

TEST(ParallelCrossEntropy, IsTheUsualOneOnARankAlone) {
  const at::Tensor logits = logits_of({7, 12});
  expect_as_whole({}, logits, targets_of(logits), {.label_smoothing = 0.1}, "alone");
}

TEST(ParallelCrossEntropy, HasTheSameBitsOnAllRanks) {
  const at::Tensor logits = logits_of({7, 12}, at::kFloat);
  std::vector<float> losses(4);
  run_ranks(4, [&](const ProcessGroupPtr& group) {
    losses[static_cast<size_t>(group->getRank())] =
        parallel(group, logits, targets_of(logits), {}).loss.item<float>();
  });
  EXPECT_THAT(losses, ElementsAre(losses[0], losses[0], losses[0], losses[0]));
}

TEST(ParallelCrossEntropy, TakesLogitsInAnyOrderOfMemory) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const at::Tensor logits = logits_of({2, 3, 12}).transpose(1, 2);
    expect_as_whole(group, logits, targets_of(logits), {.label_smoothing = 0.1}, "transposed");
  });
}

// Exponentials of such logits are not numbers of the type.
TEST(ParallelCrossEntropy, StaysFiniteWithLargeLogits) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    for (const double shift : {1000.0, -1000.0}) {
      const at::Tensor logits = logits_of({7, 12}, at::kFloat).add(shift);
      expect_as_whole(group, logits, targets_of(logits), {}, absl::StrCat("shift ", shift), 1e-4);
    }
    const at::Tensor apart = logits_of({7, 12}, at::kFloat);
    apart.narrow(1, 0, 6).add_(500);
    expect_as_whole(group, apart, targets_of(apart), {}, "ranks far apart", 1e-5);
  });
}

// A rank may have masked classes alone.
TEST(ParallelCrossEntropy, TakesClassesThatCannotBe) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const at::Tensor logits = logits_of({4, 12});
    logits.narrow(1, 6, 6).fill_(-std::numeric_limits<double>::infinity());
    const at::Tensor target = at::tensor({0, 3, 5, 2}, at::kLong);
    expect_as_whole(group, logits, target, {}, "targets that can be");
    expect_as_whole(group, logits, target.add(4), {.reduction = None}, "targets that cannot be");
  });
}

TEST(ParallelCrossEntropy, TellsAnErrorInTheLogits) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const at::Tensor logits = logits_of({2, 12});
    logits[1][8].fill_(std::nan(""));
    const at::Tensor losses =
        parallel(group, logits, at::tensor({3, 3}, at::kLong), {.reduction = None}).loss;
    EXPECT_TRUE(std::isfinite(losses[0].item<double>()));
    EXPECT_TRUE(std::isnan(losses[1].item<double>()));
  });
}

TEST(ParallelCrossEntropy, GivesATokensGradientToItsRowAlone) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const at::Tensor logits = logits_of({5, 12});
    const at::Tensor part = part_of(logits, group).clone().requires_grad_();
    const at::Tensor gradient = at::zeros({5}, at::kDouble);
    gradient[3].fill_(7);
    parallel_cross_entropy(part, targets_of(logits), {.reduction = None}, group, 12)
        .backward(gradient);
    at::Tensor expected = at::zeros({5, 12}, at::kDouble);
    expected[3] = logits[3].softmax(0);
    expected[3][targets_of(logits)[3].item<int64_t>()].sub_(1);
    EXPECT_TRUE(at::allclose(part.grad(), part_of(expected.mul(7), group), 1e-12, 1e-12));
    EXPECT_EQ(part.grad().count_nonzero().item<int64_t>(), 6);
  });
}

TEST(ParallelCrossEntropy, IsNothingWhereAllTokensAreIgnored) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const at::Tensor logits = logits_of({4, 12});
    const at::Tensor target = at::full({4}, -100, at::kLong);
    for (const double smoothing : {0.0, 0.1}) {
      for (const auto reduction : {None, Sum}) {
        const Outcome outcome =
            parallel(group, logits, target, {.reduction = reduction, .label_smoothing = smoothing});
        EXPECT_EQ(outcome.loss.count_nonzero().item<int64_t>(), 0);
        EXPECT_EQ(outcome.gradient.count_nonzero().item<int64_t>(), 0);
      }
      // Nothing divided by nothing, as of whole logits.
      EXPECT_TRUE(std::isnan(
          parallel(group, logits, target, {.label_smoothing = smoothing}).loss.item<double>()));
    }
  });
}

// In bfloat16 itself a sum of ones ends at 256.
TEST(ParallelCrossEntropy, AddsHalfPrecisionUpInFloat32) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    run_ranks(2, [&](const ProcessGroupPtr& group) {
      const at::Tensor even = at::zeros({512, 1024}, dtype);
      const Outcome of_even = parallel(group, even, targets_of(even), {});
      EXPECT_EQ(of_even.loss.scalar_type(), dtype);
      EXPECT_TRUE(at::equal(of_even.loss, at::full({}, std::log(1024.0)).to(dtype)));
      EXPECT_EQ(of_even.gradient.scalar_type(), dtype);

      const at::Tensor logits = logits_of({7, 12}, dtype);
      const Outcome actual = parallel(group, logits, targets_of(logits), {.reduction = Sum});
      const Outcome expected = whole(logits.to(at::kFloat), targets_of(logits), {.reduction = Sum});
      EXPECT_TRUE(at::allclose(actual.loss.to(at::kFloat), expected.loss, 1.0 / 256));
      EXPECT_TRUE(at::allclose(actual.gradient.to(at::kFloat), part_of(expected.gradient, group),
                               1.0 / 128, 1e-4));
    });
  }
}

TEST(ParallelCrossEntropy, HasTheDtypeThatAutocastGivesTheUsualOne) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const at::Tensor logits = logits_of({7, 12}, at::kBFloat16);
    for (const bool autocast : {false, true}) {
      at::autocast::set_autocast_enabled(at::kCPU, autocast);
      const at::Tensor loss = parallel(group, logits, targets_of(logits), {}).loss;
      EXPECT_EQ(loss.scalar_type(), autocast ? at::kFloat : at::kBFloat16);
      EXPECT_EQ(loss.scalar_type(), whole(logits, targets_of(logits), {}).loss.scalar_type());
    }
    at::autocast::set_autocast_enabled(at::kCPU, false);
  });
}

// A group of one rank that counts what it is given.
class CountingBackend : public CallBackend {
 public:
  CountingBackend() : CallBackend(/*rank=*/0, /*size=*/1) {}

  std::vector<std::string> calls;
  int64_t bytes = 0;

 private:
  struct Done : c10d::Work {
    bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
  };
  WorkPtr issue(const CollectiveCall& call) override {
    for (const at::Tensor& tensor : call.share()) {
      bytes += tensor.numel() * static_cast<int64_t>(tensor.element_size());
    }
    calls.push_back(absl::StrCat(op_name(call.op), " ", reduce_op_name(*call.reduce_op), " for ",
                                 call.describe().purpose));
    return c10::make_intrusive<Done>();
  }
};

TEST(ParallelCrossEntropy, SendsThreeNumbersATokenAndFourWithLabelSmoothing) {
  for (const double smoothing : {0.0, 0.1}) {
    const auto backend = c10::make_intrusive<CountingBackend>();
    const auto group =
        c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::HashStore>(), 0, 1);
    group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::CUSTOM, backend);
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
    const at::Tensor logits = logits_of({4 * 128, 16}, at::kBFloat16);
    const int64_t numbers = smoothing == 0 ? 3 : 4;
    parallel(group, logits, targets_of(logits), {.label_smoothing = smoothing});
    EXPECT_EQ(backend->bytes, numbers * 4 * 128 * 4);
    EXPECT_THAT(backend->calls, ElementsAre("all_reduce max for parallel_cross_entropy",
                                            "all_reduce sum for parallel_cross_entropy"));
  }
}

TEST(ParallelCrossEntropy, NeedsNoGraph) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const at::NoGradGuard no_grad;
    const at::Tensor logits = logits_of({7, 12}).requires_grad_();
    const at::Tensor loss =
        parallel_cross_entropy(part_of(logits, group), targets_of(logits), {}, group, 12);
    EXPECT_FALSE(loss.requires_grad());
    EXPECT_TRUE(at::allclose(loss, at::cross_entropy_loss(logits, targets_of(logits))));
  });
}

std::string error_of(const ProcessGroupPtr& group, const at::Tensor& logits,
                     const at::Tensor& target, const CrossEntropyOptions& options = {},
                     int64_t vocabulary = 12) {
  return value_error_of(
      [&] { parallel_cross_entropy(logits, target, options, group, vocabulary); });
}

TEST(ParallelCrossEntropy, RefusesWholeLogits) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const at::Tensor logits = logits_of({7, 12});
    EXPECT_THAT(error_of(group, logits, targets_of(logits)),
                HasSubstr(absl::StrCat("the logits are whole, with all 12 classes, of which rank ",
                                       group->getRank(),
                                       " of 2 has 6; pass the rank's part, or whole "
                                       "logits to cross_entropy")));
  });
}

TEST(ParallelCrossEntropy, RefusesOtherClassesThanTheRanks) {
  run_ranks(3, [](const ProcessGroupPtr& group) {
    const at::Tensor target = at::zeros({7}, at::kLong);
    EXPECT_THAT(error_of(group, logits_of({7, 5}), target),
                HasSubstr(absl::StrCat("the logits have 5 classes, but rank ", group->getRank(),
                                       " of 3 has 4 of the 12")));
    EXPECT_THAT(error_of(group, logits_of({7, 1}), target, {}, /*vocabulary=*/2),
                HasSubstr("of 2 classes rank 2 of 3 has none; cut them among fewer ranks"));
  });
}

TEST(ParallelCrossEntropy, RefusesTargetsAndOptionsThatItDoesNotHave) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const at::Tensor logits = logits_of({7, 6});
    const at::Tensor target = at::zeros({7}, at::kLong);
    EXPECT_THAT(error_of(group, logits, at::ones({7, 12})),
                HasSubstr("targets are numbers of classes, not probabilities (Float), for which "
                          "cross_entropy of whole logits can be taken"));
    EXPECT_THAT(error_of(group, logits, at::zeros({6}, at::kLong)),
                HasSubstr("logits of sizes [7, 6] have targets of sizes [7], not [6]"));
    EXPECT_THAT(error_of(group, logits, target.add(12)),
                HasSubstr("a target is neither one of the 12 classes nor ignore_index (-100)"));
    EXPECT_THAT(error_of(group, logits, target.sub(1)), HasSubstr("neither one of the 12 classes"));
    EXPECT_THAT(error_of(group, logits, target, {.weight = at::ones({6})}),
                HasSubstr("each of the 12 classes of the whole vocabulary, not sizes [6]"));
    EXPECT_THAT(error_of(group, logits, target, {.label_smoothing = 1.5}),
                HasSubstr("label_smoothing is from 0 to 1, not 1.5"));
    EXPECT_THAT(error_of(group, logits, target, {.label_smoothing = -0.5}),
                HasSubstr("label_smoothing is from 0 to 1, not -0.5"));
    EXPECT_THAT(error_of(group, logits, target, {.weight = at::ones({12, 1})}),
                HasSubstr("not sizes [12, 1]"));
    EXPECT_THAT(error_of(group, at::ones({7, 6}, at::kLong), target),
                HasSubstr("logits are floating-point numbers"));
  });
}

TEST(ParallelCrossEntropy, RefusesASecondDerivative) {
  const at::Tensor logits = logits_of({7, 12}).requires_grad_();
  const at::Tensor loss = parallel_cross_entropy(logits, targets_of(logits), {}, {}, 12);
  try {
    torch::autograd::grad({loss}, {logits}, {}, /*retain_graph=*/true, /*create_graph=*/true);
    ADD_FAILURE() << "no error";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(),
                HasSubstr("parallel_cross_entropy has no second derivative"));
  }
}

}  // namespace
}  // namespace accelerate
