/// The cross-entropy of a prepared model's logits, which each rank along tp may have in part.
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

/// at::cross_entropy_loss of the whole logits: of the ranks' parts where the model's plan leaves
/// those of a layer cut (TensorParallelPlan::parallel_loss), else of what the rank has. See
/// parallel_cross_entropy of loss.h for shapes and errors, one of which is whole logits of such a
/// layer. Collective over the ranks along tp in the first case.
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
