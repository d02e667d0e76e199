/// The cross-entropy of logits of which each rank has a part of the classes, without putting the
/// logits together.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cross_entropy_loss.h>

#include "accelerate/comm/process_group.h"
#include "accelerate/forward/prepared_model.h"
#include "accelerate/parallel/tensor/tensor_technique.h"

namespace accelerate {

/// The arguments of at::cross_entropy_loss.
struct CrossEntropyOptions {
  /// One number for each class of the whole vocabulary, without a gradient; undefined: 1.
  at::Tensor weight = {};
  at::Reduction::Reduction reduction = at::Reduction::Mean;
  /// The target of tokens that do not count.
  int64_t ignore_index = -100;
  /// From 0 to 1.
  double label_smoothing = 0;
};

/// at::cross_entropy_loss of the whole logits, and the gradient of this rank's part of them. Rank r
/// has the classes that shard_rows(vocabulary, ranks, r) gives it (base/shard_rows.h).
///
/// Ranks send three numbers for each token, or four with label smoothing: the largest logit, then
/// the sum of exponentials and the target's logit. That is two all-reduces; a backward pass sends
/// nothing. Between the passes the logits are kept, and two numbers a token. Half precision is
/// added up in float32. Collective over `group`; null: one rank, which has all classes.
///
/// Shapes:  logits [C], [N, C] or [N, C, d...] with C classes of this rank; target [], [N] or
///          [N, d...], integers from 0 to vocabulary - 1 or ignore_index, the same on all ranks;
///          out as the target without reduction, else [].
/// Returns: the same on all ranks, in the dtype of at::cross_entropy_loss: that of the logits, or
///          float32 under autocast.
/// Errors:  c10::ValueError on this rank, before anything is sent, for whole logits, for another
///          number of classes than this rank's, for a vocabulary that leaves a rank no class, for
///          targets that are probabilities, that have another shape or, where the device checks
///          indices, that are out of range. c10::Error in a backward pass with create_graph,
///          because second derivatives are not computed.
/// Threads: one call at a time for each group.
at::Tensor parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                                  const CrossEntropyOptions& options, const ProcessGroupPtr& group,
                                  int64_t vocabulary);

/// The cross-entropy of a prepared model's logits, of which each rank along tp may have a part:
///
///     const auto loss = accelerate::parallel_cross_entropy(model, logits.flatten(0, 1),
///                                                          labels.flatten());
///
/// at::cross_entropy_loss of the whole logits. With TensorParallelPlan::parallel_loss it is
/// computed from the ranks' parts of the logits and is collective over the ranks along tp; the
/// function above has shapes and errors, one of which is whole logits of a layer that is cut.
/// Otherwise it is at::cross_entropy_loss of the given logits. Threads: the rank's thread.
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
