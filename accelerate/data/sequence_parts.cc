#include "accelerate/data/sequence_parts.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <c10/core/MemoryFormat.h>
#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"

namespace accelerate::internal {
namespace {

constexpr char kInputs[] = "input_ids";
constexpr char kLabels[] = "labels";
constexpr char kShiftedLabels[] = "shift_labels";
constexpr char kPositions[] = "position_ids";
constexpr int64_t kIgnored = -100;  // cross_entropy's ignore_index

std::string on_rank(const SequencePart& part) { return absl::StrCat("rank ", part.rank, ": "); }

// The label of each token is that of the next one.
at::Tensor shifted(const at::Tensor& labels) {
  at::Tensor shifted = at::full(labels.sizes(), kIgnored, labels.options());
  const int64_t rest = labels.size(1) - 1;
  if (rest > 0) shifted.narrow(1, 0, rest).copy_(labels.narrow(1, 1, rest));
  return shifted;
}

}  // namespace

NamedBatch with_shifted_labels(NamedBatch batch, const SequencePart& part) {
  if (const auto labels = batch.find(kLabels); labels != batch.end()) {
    TORCH_CHECK_VALUE(!batch.contains(kShiftedLabels), on_rank(part), "a batch has \"", kLabels,
                      "\" and \"", kShiftedLabels, "\"; leave one of them out");
    TORCH_CHECK_VALUE(labels->second.defined() && labels->second.dim() >= 2, on_rank(part), "\"",
                      kLabels, "\" of a batch of sequences must have a label for each token");
    batch.emplace(kShiftedLabels, shifted(labels->second));
    batch.erase(labels);
  }
  const auto inputs = batch.find(kInputs);
  if (inputs != batch.end() && !batch.contains(kPositions) && inputs->second.defined() &&
      inputs->second.dim() == 2) {
    const at::Tensor& tokens = inputs->second;
    batch.emplace(kPositions,
                  at::arange(tokens.size(1), at::TensorOptions(tokens.device()).dtype(at::kLong))
                      .expand(tokens.sizes()));
  }
  return batch;
}

int64_t checked_length(const at::Tensor& whole, const SequencePart& part) {
  TORCH_CHECK_VALUE(whole.defined() && whole.dim() >= 2, on_rank(part), "\"", kInputs,
                    "\" of a batch has no dim of tokens, along which ranks divide sequences");
  const int64_t size = whole.size(1);
  TORCH_CHECK_VALUE(part.length == 0 || size == part.length, on_rank(part),
                    "the sequences of a batch have ", size,
                    " tokens, but sp_seq_length=", part.length,
                    "; pad them, or set sp_seq_length_is_variable=true");
  const int64_t rest = size % part.count;
  TORCH_CHECK_VALUE(rest == 0, on_rank(part), "the sequences of a batch have ", size,
                    " tokens, which do not divide evenly among ", part.count, " ranks along sp; ",
                    size - rest, " and ", size - rest + part.count, " would");
  return size;
}

at::Tensor cut_sequences(const at::Tensor& whole, const SequencePart& part, int64_t& length) {
  if (!whole.defined() || whole.dim() < 2) return whole;
  if (length == 0) length = checked_length(whole, part);
  const int64_t size = whole.size(1);
  TORCH_CHECK_VALUE(size == length, on_rank(part), "a batch has a tensor of sizes ", whole.sizes(),
                    ", but its sequences have ", length, " tokens, along dim 1");
  const int64_t own = size / part.count;
  return whole.narrow(1, part.index * own, own).clone(at::MemoryFormat::Contiguous);
}

}  // namespace accelerate::internal
