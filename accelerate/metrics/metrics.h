/// Metrics of an evaluation that several ranks run: means, accuracy, F1 and perplexity.
///
/// A metric is fed with what Accelerator::gather_for_metrics gives, so that every rank has all
/// samples, each of them once, and computes the same number. With even_batches off only the ranks
/// that have a batch in every round have all samples: rank 0 is one of them.
///
///   accelerate::metrics::Accuracy accuracy;
///   for (auto& [images, labels] : loader) {
///     const auto [predicted, expected] =
///         accelerator.gather_for_metrics(std::pair(model(images).argmax(1), labels));
///     accuracy.add(predicted, expected);
///   }
///   accelerator.save_state({}, {.metric = accuracy.compute()});
///
/// Counts are whole numbers and sums are in double precision. Sums stay on the device of the first
/// values, so that add() waits for no device and compute() waits once. All calls are local, keep no
/// gradients, and may be repeated: compute() is about all that was added by then. `M = {}` begins
/// anew.
/// Errors:  c10::ValueError for values that do not belong together, and for compute() before any
///          value was added.
/// Threads: one at a time for an object.
#pragma once

#include <cstdint>
#include <utility>

#include <ATen/core/Tensor.h>

namespace accelerate::metrics {

/// The mean of values of samples, as of losses.
class Mean {
 public:
  /// Every element is a value. Shapes: any.
  void add(const at::Tensor& values);
  /// Sums of values, and of how many values each of them is the sum. Shapes: any, the same.
  void add_sums(const at::Tensor& sums, const at::Tensor& counts);
  double compute() const;

 private:
  // 0-dim, in double precision; undefined before the first values.
  at::Tensor sum_;
  at::Tensor count_;
};

/// The share of predictions that are equal to what was expected.
class Accuracy {
 public:
  /// Shapes: any, the same: numbers of classes, not their scores.
  void add(const at::Tensor& predicted, const at::Tensor& expected);
  double compute() const { return mean_.compute(); }

 private:
  Mean mean_;
};

/// How F1 scores of classes become one number.
enum class F1Average {
  /// That of class 1, of two classes.
  kBinary,
  /// The mean over classes. A class that was neither predicted nor expected has a score of 0.
  kMacro,
  /// The score of the sums of all classes' counts.
  kMicro,
  /// The mean over classes, weighted by how often each was expected.
  kWeighted,
};

/// The harmonic mean of precision and recall.
class F1 {
 public:
  /// Errors: c10::ValueError for fewer than two classes, and for more than two with kBinary.
  explicit F1(int64_t classes = 2, F1Average average = F1Average::kBinary);

  /// Shapes: any, the same: numbers of classes, from 0.
  void add(const at::Tensor& predicted, const at::Tensor& expected);
  /// Errors: c10::ValueError as well if a class was outside of the range.
  double compute() const;

 private:
  int64_t classes_;
  F1Average average_;
  int64_t samples_ = 0;
  // How often each class was predicted rightly, predicted, and expected: [3, classes]. Undefined
  // before the first values.
  at::Tensor counts_;
};

/// For each row the sum of its tokens' negative log-likelihoods, and the number of its tokens that
/// have a label: what gather_for_metrics can gather and Perplexity takes.
/// Shapes: logits [rows, tokens, classes], labels [rows, tokens] of int64; out [rows] each.
std::pair<at::Tensor, at::Tensor> token_losses(const at::Tensor& logits, const at::Tensor& labels,
                                               int64_t ignore_index = -100);

/// The exponential of the mean negative log-likelihood of tokens, however many a row has.
class Perplexity {
 public:
  /// What token_losses gives. Shapes: any, the same.
  void add(const at::Tensor& loss_sums, const at::Tensor& tokens) {
    mean_.add_sums(loss_sums, tokens);
  }
  double compute() const;

 private:
  Mean mean_;
};

}  // namespace accelerate::metrics
