/// A window of micro-batches in one call: Accelerator::train_batch and evaluate_batch.
///
/// Threads: the rank's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "accelerate/forward/prepared_model.h"
#include "accelerate/pipeline/schedule.h"
#include "accelerate/tensors/tree.h"
#include "accelerate/tensors/tree_operations.h"

namespace accelerate {

struct TrainBatchOptions {
  /// Into how many parts the batch is divided by rows. Their sizes differ by one row at most; the
  /// first ones have more. Absent: as many as the PipelinePlan says.
  std::optional<int> micro_batches = std::nullopt;
  /// Absent: that of the PipelinePlan. Without effect where pp has one rank, which computes one
  /// micro-batch after the other.
  std::optional<pipeline::ScheduleKind> schedule = std::nullopt;
  /// A schedule of the program's own, in place of one that has a name.
  std::optional<pipeline::Schedule> own_schedule = std::nullopt;
  /// The numbers of this rank's tokens in their sequences, int64 [tokens], the same for all rows:
  /// for a model of which the rank has some tokens of each sequence, as inside of
  /// maybe_context_parallel, whose buffer this is then. The model's forward takes them behind its
  /// input, and where ranks have stages ModelParts::forward_parts_at does.
  at::Tensor positions = {};
};

/// What a loss function gives whose losses are sums over tokens, or other items.
struct TokenLoss {
  at::Tensor sum;  ///< 0-dim
  int64_t tokens = 0;
};

namespace internal {

/// What a window computes of a batch.
struct WindowCalls {
  /// [rows, ...]; undefined: this rank was given none.
  at::Tensor inputs;
  /// How many rows the labels have; absent where they have no tensor.
  std::optional<int64_t> label_rows;
  /// The whole model's forward pass. Without positions they are undefined.
  std::function<at::Tensor(const at::Tensor& inputs, const at::Tensor& positions)> forward;
  /// The loss of the rows [first, first + count).
  std::function<TokenLoss(const at::Tensor& output, int64_t first, int64_t count)> loss;
  /// Whether losses are sums; otherwise they are means over rows, without tokens.
  bool by_tokens = false;
};

/// `batch`: a pair, or another tree of two members, of inputs and labels.
template <typename Module, typename Batch, typename LossFn>
WindowCalls window_calls(PreparedModel<Module> model, Batch batch, LossFn loss_fn) {
  static_assert(kHasMembers<Batch>, "train_batch takes a batch of inputs and labels, as a pair");
  auto members = members_of(batch);
  static_assert(std::tuple_size_v<decltype(members)> == 2,
                "train_batch takes a batch of two members: inputs and labels");
  using Labels = std::remove_cvref_t<std::tuple_element_t<1, decltype(members)>>;
  const Labels labels = std::get<1>(members);
  constexpr bool kTakesPositions =
      std::is_invocable_v<const ModuleForward<Module>&, const at::Tensor&, const at::Tensor&>;
  WindowCalls calls = {.inputs = std::get<0>(members),
                       .label_rows = ignorant_find_batch_size(labels),
                       .forward = [model](const at::Tensor& inputs,
                                          const at::Tensor& positions) mutable -> at::Tensor {
                         if constexpr (kTakesPositions) {
                           if (positions.defined()) return model(inputs, positions);
                         }
                         TORCH_CHECK_VALUE(
                             !positions.defined(),
                             "train_batch: the model's forward takes no positions of tokens behind "
                             "its input");
                         return model(inputs);
                       },
                       .loss = nullptr};
  using Loss = std::remove_cvref_t<std::invoke_result_t<LossFn&, const at::Tensor&, const Labels&>>;
  calls.by_tokens = std::is_same_v<Loss, TokenLoss>;
  calls.loss = [labels, loss_fn](const at::Tensor& output, int64_t first,
                                 int64_t count) mutable -> TokenLoss {
    const Labels rows = slice_tensors(labels, TensorSlice{.start = first, .stop = first + count});
    if constexpr (std::is_same_v<Loss, TokenLoss>) {
      return loss_fn(output, rows);
    } else {
      return {.sum = loss_fn(output, rows)};
    }
  };
  return calls;
}

}  // namespace internal
}  // namespace accelerate
