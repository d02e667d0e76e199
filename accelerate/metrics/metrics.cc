#include "accelerate/metrics/metrics.h"

#include <cmath>

#include <ATen/core/Reduction.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

namespace accelerate::metrics {
namespace {

void check_alike(const char* metric, const at::Tensor& one, const at::Tensor& other) {
  TORCH_CHECK_VALUE(one.sizes() == other.sizes(), metric, ": values of shapes ", one.sizes(),
                    " and ", other.sizes(), " do not belong together");
}

void accumulate(at::Tensor& sum, const at::Tensor& part) {
  sum = sum.defined() ? sum + part : part;
}

at::Tensor sum_of(const at::Tensor& values) { return values.detach().sum(at::kDouble); }

}  // namespace

void Mean::add(const at::Tensor& values) {
  accumulate(sum_, sum_of(values));
  accumulate(count_, at::full({}, static_cast<double>(values.numel()),
                              values.options().dtype(at::kDouble)));
}

void Mean::add_sums(const at::Tensor& sums, const at::Tensor& counts) {
  check_alike("Mean", sums, counts);
  accumulate(sum_, sum_of(sums));
  accumulate(count_, sum_of(counts));
}

double Mean::compute() const {
  constexpr char kNone[] = "a mean of no values; call add() before compute()";
  TORCH_CHECK_VALUE(sum_.defined(), kNone);
  const at::Tensor both = at::stack({sum_, count_}).cpu();
  const double count = both[1].item<double>();
  TORCH_CHECK_VALUE(count > 0, kNone);
  return both[0].item<double>() / count;
}

void Accuracy::add(const at::Tensor& predicted, const at::Tensor& expected) {
  check_alike("Accuracy", predicted, expected);
  mean_.add(predicted.eq(expected));
}

F1::F1(int64_t classes, F1Average average) : classes_(classes), average_(average) {
  TORCH_CHECK_VALUE(classes >= 2, "F1 is of two classes or more, not of ", classes);
  TORCH_CHECK_VALUE(classes == 2 || average != F1Average::kBinary, "F1 of ", classes,
                    " classes needs an average other than kBinary");
}

void F1::add(const at::Tensor& predicted, const at::Tensor& expected) {
  check_alike("F1", predicted, expected);
  const at::Tensor classes = at::arange(classes_, expected.options().dtype(at::kLong));
  const at::Tensor is_predicted = predicted.detach().reshape({-1, 1}).eq(classes);
  const at::Tensor is_expected = expected.detach().reshape({-1, 1}).eq(classes);
  accumulate(counts_, at::stack({is_predicted.logical_and(is_expected).sum(0), is_predicted.sum(0),
                                 is_expected.sum(0)}));
  samples_ += expected.numel();
}

double F1::compute() const {
  TORCH_CHECK_VALUE(samples_ > 0, "F1 of no values; call add() before compute()");
  const at::Tensor counts = counts_.cpu().to(at::kDouble);
  const at::Tensor right = counts[0], predicted = counts[1], expected = counts[2];
  const auto has_all = [&](const at::Tensor& each) {
    return each.sum().item<double>() == static_cast<double>(samples_);
  };
  TORCH_CHECK_VALUE(has_all(predicted) && has_all(expected), "F1: a class is outside of 0 to ",
                    classes_ - 1);
  // Classes that do not occur have no counts, and a score of 0.
  const at::Tensor scores = 2 * right / (predicted + expected).clamp_min(1);
  switch (average_) {
    case F1Average::kBinary: return scores[1].item<double>();
    case F1Average::kMacro: return scores.mean().item<double>();
    case F1Average::kMicro: return right.sum().item<double>() / static_cast<double>(samples_);
    case F1Average::kWeighted: break;
  }
  return (scores * expected).sum().item<double>() / static_cast<double>(samples_);
}

std::pair<at::Tensor, at::Tensor> token_losses(const at::Tensor& logits, const at::Tensor& labels,
                                               int64_t ignore_index) {
  TORCH_CHECK_VALUE(
      logits.dim() == 3 && labels.dim() == 2 && logits.sizes().slice(0, 2) == labels.sizes(),
      "token_losses: logits of shape ", logits.sizes(), " and labels of shape ", labels.sizes(),
      "; expected [rows, tokens, classes] and [rows, tokens]");
  const at::ScalarType dtype = c10::promoteTypes(logits.scalar_type(), at::kFloat);
  const at::Tensor losses =
      at::cross_entropy_loss(logits.flatten(0, 1).to(dtype), labels.flatten(), /*weight=*/{},
                             at::Reduction::None, ignore_index);
  return {losses.reshape(labels.sizes()).sum(1), labels.ne(ignore_index).sum(1)};
}

double Perplexity::compute() const { return std::exp(mean_.compute()); }

}  // namespace accelerate::metrics
