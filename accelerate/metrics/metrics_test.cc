#include "accelerate/metrics/metrics.h"

#include <cmath>
#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace accelerate::metrics {
namespace {

using testing::HasSubstr;

std::string error_of(const std::function<void()>& body) {
  try {
    body();
    return "none";
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
}

TEST(Metrics, AMeanIsOfAllElements) {
  Mean mean;
  mean.add(torch::tensor({1.0, 2.0}));
  EXPECT_EQ(mean.compute(), 1.5);
  mean.add(torch::tensor({{6.0}, {7.0}}, torch::requires_grad()));
  EXPECT_EQ(mean.compute(), 4.0);
  mean.add_sums(torch::tensor({4.0}), torch::tensor({4}));
  EXPECT_EQ(mean.compute(), 2.5);
}

TEST(Metrics, ACopyGoesOnByItself) {
  Mean mean;
  mean.add_sums(torch::full({}, 4.0, torch::kDouble), torch::full({}, 2.0, torch::kDouble));
  const Mean before = mean;
  mean.add(torch::tensor({5.0}));
  EXPECT_EQ(mean.compute(), 3.0);
  EXPECT_EQ(before.compute(), 2.0);
  F1 f1(2, F1Average::kMicro);
  f1.add(torch::tensor({1}), torch::tensor({1}));
  const F1 right = f1;
  f1.add(torch::tensor({0}), torch::tensor({1}));
  EXPECT_EQ(f1.compute(), 0.5);
  EXPECT_EQ(right.compute(), 1.0);
}

// What is added may be written into afterwards, also where it is its own sum.
TEST(Metrics, AMeanIsOfWhatWasThereWhenItWasAdded) {
  Mean mean;
  const torch::Tensor sums = torch::full({}, 6.0, torch::kDouble), counts = torch::tensor({2.0});
  mean.add_sums(sums.view({1}), counts);
  sums.fill_(100);
  counts.fill_(100);
  EXPECT_EQ(mean.compute(), 3.0);
}

TEST(Metrics, SumsAndCountsBelongTogether) {
  Mean mean;
  EXPECT_THAT(error_of([&] { mean.add_sums(torch::ones({2}), torch::ones({1})); }),
              HasSubstr("Mean: values of shapes [2] and [1]"));
  mean.add(torch::empty({0}));
  EXPECT_THAT(error_of([&] { mean.compute(); }), HasSubstr("no values"));
  F1 f1;
  EXPECT_THAT(error_of([&] { f1.add(torch::zeros({2, 2}), torch::zeros({4})); }),
              HasSubstr("F1: values of shapes [2, 2] and [4]"));
}

// A sum in single precision stops at 2^24.
TEST(Metrics, AMeanOfManyIsExact) {
  Mean mean;
  mean.add(torch::full({1}, 16'777'216.0f));
  mean.add(torch::ones({3}));
  EXPECT_EQ(mean.compute(), 16'777'219.0 / 4);
}

TEST(Metrics, AccuracyIsTheShareOfEqualOnes) {
  Accuracy accuracy;
  accuracy.add(torch::tensor({1, 2, 3}), torch::tensor({1, 2, 4}));
  accuracy.add(torch::tensor({5}), torch::tensor({6}));
  EXPECT_EQ(accuracy.compute(), 0.5);
  EXPECT_THAT(error_of([&] { accuracy.add(torch::zeros({2, 10}), torch::tensor({1, 2})); }),
              HasSubstr("shapes [2, 10] and [2] do not belong together"));
}

// By hand: class 0 has precision 1/2 and recall 1, class 1 has 1 and 1/3, class 2 has 1/2 and 1.
double f1_of_three(F1Average average) {
  F1 f1(3, average);
  f1.add(torch::tensor({0, 0, 1}), torch::tensor({0, 1, 1}));
  f1.add(torch::tensor({{2, 2}}), torch::tensor({{1, 2}}));
  return f1.compute();
}

TEST(Metrics, F1OfClassesIsTheirCountsTogether) {
  constexpr double kScores[] = {2.0 / 3, 0.5, 2.0 / 3};
  EXPECT_DOUBLE_EQ(f1_of_three(F1Average::kMacro), (kScores[0] + kScores[1] + kScores[2]) / 3);
  EXPECT_DOUBLE_EQ(f1_of_three(F1Average::kMicro), 3.0 / 5);
  EXPECT_DOUBLE_EQ(f1_of_three(F1Average::kWeighted),
                   (kScores[0] + 3 * kScores[1] + kScores[2]) / 5);
}

// As scikit-learn has them with labels=[0, 1, 2, 3] and zero_division=0.
TEST(Metrics, AClassThatDoesNotOccurHasAScoreOfZero) {
  const auto score = [](F1Average average) {
    F1 f1(4, average);
    f1.add(torch::tensor({0, 1, 1, 3}), torch::tensor({0, 1, 1, 1}));
    return f1.compute();
  };
  EXPECT_DOUBLE_EQ(score(F1Average::kMacro), (1 + 0.8) / 4);
  EXPECT_DOUBLE_EQ(score(F1Average::kMicro), 0.75);
  EXPECT_DOUBLE_EQ(score(F1Average::kWeighted), (1 + 3 * 0.8) / 4);
}

TEST(Metrics, BinaryF1IsThatOfClassOne) {
  F1 f1;
  f1.add(torch::tensor({1, 1, 1, 0}), torch::tensor({1, 0, 1, 1}));
  EXPECT_DOUBLE_EQ(f1.compute(), 2.0 / 3);
  F1 none;
  none.add(torch::tensor({0, 0}), torch::tensor({0, 0}));
  EXPECT_EQ(none.compute(), 0.0);
}

TEST(Metrics, F1RefusesClassesThatItDoesNotHave) {
  EXPECT_THAT(error_of([] { F1(3); }), HasSubstr("3 classes needs an average"));
  EXPECT_THAT(error_of([] { F1(1); }), HasSubstr("two classes or more, not of 1"));
  F1 f1;
  f1.add(torch::tensor({1, 2}), torch::tensor({1, 1}));
  EXPECT_THAT(error_of([&] { f1.compute(); }), HasSubstr("outside of 0 to 1"));
  for (const int64_t outside : {-1, 2}) {
    F1 expected;
    expected.add(torch::tensor({1, 0}), torch::tensor({int64_t{1}, outside}));
    EXPECT_THAT(error_of([&] { expected.compute(); }), HasSubstr("outside of 0 to 1")) << outside;
  }
}

TEST(Metrics, PerplexityCountsTokensAndNotRows) {
  const torch::Tensor logits = torch::zeros({2, 3, 4});
  logits[0][0][1] = std::log(5.0);  // 5 of 8
  const torch::Tensor labels = torch::tensor({{1, -100, -100}, {0, 1, 2}});
  const auto [sums, tokens] = token_losses(logits, labels);
  EXPECT_TRUE(torch::equal(tokens, torch::tensor({1, 3})));
  Perplexity perplexity;
  perplexity.add(sums, tokens);
  EXPECT_NEAR(perplexity.compute(), std::exp((std::log(8.0 / 5) + 3 * std::log(4.0)) / 4), 1e-6);
  EXPECT_THAT(error_of([&] { token_losses(logits[0], labels); }),
              HasSubstr("expected [rows, tokens, classes]"));
  EXPECT_THAT(error_of([&] { token_losses(logits, labels.t()); }),
              HasSubstr("labels of shape [3, 2]"))
      << "as many, but of other tokens";
}

TEST(Metrics, AnotherLabelMayBeTheOneThatDoesNotCount) {
  const auto [sums, tokens] = token_losses(torch::zeros({1, 3, 4}), torch::tensor({{0, 1, 0}}),
                                           /*ignore_index=*/0);
  EXPECT_TRUE(torch::equal(tokens, torch::tensor({1})));
  EXPECT_NEAR(sums.item<double>(), std::log(4.0), 1e-6);
}

TEST(Metrics, LossesOfHalfPrecisionAreInSinglePrecision) {
  const torch::Tensor logits = torch::linspace(-8, 8, 40).view({2, 4, 5}).to(torch::kBFloat16);
  const torch::Tensor labels = torch::tensor({{0, 1, 2, 3}, {4, 3, 2, 1}});
  const torch::Tensor sums = token_losses(logits, labels).first;
  EXPECT_EQ(sums.scalar_type(), torch::kFloat);
  EXPECT_TRUE(torch::equal(sums, token_losses(logits.to(torch::kFloat), labels).first));
  EXPECT_EQ(token_losses(logits.to(torch::kDouble), labels).first.scalar_type(), torch::kDouble);
}

// What the values were computed of is freed with them.
TEST(Metrics, AMeanKeepsNoGraph) {
  Mean mean;
  const auto memory_of = [&mean](bool by_sums) {
    const torch::Tensor values = torch::ones({2}, torch::requires_grad()).exp();
    if (by_sums) {
      mean.add_sums(values, torch::ones({2}));
    } else {
      mean.add(values);
    }
    return values.storage().getWeakStorageImpl();  // which the graph of exp() keeps
  };
  EXPECT_TRUE(memory_of(false).expired());
  EXPECT_TRUE(memory_of(true).expired());
  EXPECT_NEAR(mean.compute(), std::exp(1.0), 1e-6);
}

TEST(Metrics, OfNothingIsAnError) {
  EXPECT_THAT(error_of([] { Mean().compute(); }), HasSubstr("no values"));
  EXPECT_THAT(error_of([] { Accuracy().compute(); }), HasSubstr("no values"));
  EXPECT_THAT(error_of([] { F1().compute(); }), HasSubstr("no values"));
  EXPECT_THAT(error_of([] { Perplexity().compute(); }), HasSubstr("no values"));
}

}  // namespace
}  // namespace accelerate::metrics
