/// The cross-entropy of a prepared model's logits, of which each rank along tp may have a part.
///
///     const auto loss = accelerate::parallel_cross_entropy(model, logits.flatten(0, 1),
///                                                          labels.flatten());
///
/// Threads: the rank's thread.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cross_entropy_loss.h>

#include "accelerate/forward/prepared_model.h"
#include "accelerate/parallel/tensor/loss.h"
#include "accelerate/parallel/tensor/tensor_technique.h"

namespace accelerate {

/// at::cross_entropy_loss of the whole logits. With TensorParallelPlan::parallel_loss it is
/// computed from the ranks' parts of the logits and is collective over the ranks along tp; loss.h
/// has shapes and errors, one of which is whole logits of a layer that is cut. Otherwise it is
/// at::cross_entropy_loss of the given logits.
template <typename Module>
at::Tensor parallel_cross_entropy(const PreparedModel<Module>& model, const at::Tensor& logits,
                                  const at::Tensor& target,
                                  const CrossEntropyOptions& options = {}) {
  const auto* const technique = find_technique<TensorParallelTechnique>(model);
  const int64_t classes = logits.dim() == 0 ? 1 : logits.size(logits.dim() == 1 ? 0 : 1);
  const std::optional<int64_t> vocabulary =
      technique != nullptr ? technique->vocabulary_of(classes) : std::nullopt;
  if (vocabulary) {
    return parallel_cross_entropy(logits, target, options, technique->logits_group(), *vocabulary);
  }
  return at::cross_entropy_loss(logits, target, options.weight, options.reduction,
                                options.ignore_index, options.label_smoothing);
}

}  // namespace accelerate
