#include "accelerate/parallel/tensor/operator_facts.h"

#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/strings/string_view.h"
#include "accelerate/base/words.h"

namespace accelerate {
namespace {

using Kind = OperatorFacts::Kind;

// By the name without "aten::", and without "_" at the end. Others compute element by element, or
// consist of these. One is an operator of this library.
Kind kind_of(std::string_view name) {
  using enum Kind;
  static const auto& kinds = *new WordMap<Kind>(word_map<Kind>({
      {kCreation, "as_strided"},  // a view of another operator, which says more
      {kIndexPut, "_index_put_impl index_put"},
      {kReduction,
       "_log_softmax _fft_c2c _fft_c2r _fft_r2c _safe_softmax _softmax all amax amin any argmax "
       "argmin argsort count_nonzero cummax cummin cumprod cumsum kthvalue linalg_vector_norm "
       "log_softmax logcumsumexp logsumexp max mean median min mode nanmean nanmedian nansum "
       "norm prod softmax sort std std_mean sum topk var var_mean"},
      {kView, "_reshape_alias _unsafe_view flatten reshape unflatten view"},
      {kAddedProduct, "addmm baddbmm"},
      {kProduct, "bmm matmul mm"},
      {kJoin, "cat"},
      {kRange, "chunk glu narrow slice split split_with_sizes"},
      {kAllDims,
       "_cdist_forward _cudnn_rnn _pdist_forward _trilinear addbmm addmv addr cdist col2im conv1d "
       "conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution "
       "cross_entropy_loss diag_embed diagonal dot group_norm gru im2col lstm masked_scatter "
       "masked_select mkldnn_rnn_layer multinomial native_group_norm nll_loss nll_loss_nd nonzero "
       "pdist renorm rnn_relu rnn_tanh take trace vdot"},
      {kBatchNorm,
       "_batch_norm_impl_index _batch_norm_with_update _native_batch_norm_legit batch_norm "
       "cudnn_batch_norm native_batch_norm"},
      {kEinsum, "einsum"},
      {kFlip, "flip"},
      {kGather, "gather index_select"},
      {kIndex, "index"},
      {kScatter, "index_add index_copy index_fill scatter scatter_add scatter_reduce"},
      {kNorm, "layer_norm native_layer_norm rms_norm _fused_rms_norm accelerate::rms_norm"},
      {kLinear, "linear"},
      {kVectorProduct, "mv"},
      {kPermute, "permute"},
      {kRoll, "roll"},
      {kAttention, "scaled_dot_product_attention"},
      {kSelect, "select unbind"},
      {kSqueeze, "squeeze"},
      {kUnsqueeze, "stack unsqueeze"},
      {kMatrixTranspose, "t"},
      {kTranspose, "transpose"},
      {kTriangle, "tril triu"},
      {kWindows, "unfold"},
      {kSameDims, "view_as_complex view_as_real"},
  }));
  // The ways to compute attention, which give statistics besides.
  if (name.starts_with("_scaled_dot_product")) return kAttention;
  if (name.starts_with("new_") || name.starts_with("empty")) return kCreation;
  if (name.starts_with("upsample_") || name.find("pool") != name.npos) return kLastDims;
  const auto found = kinds.find(absl::string_view(name.data(), name.size()));
  return found == kinds.end() ? kPointwise : found->second;
}

std::string_view name_of(const c10::OperatorHandle& op) {
  std::string_view name = op.schema().name();
  constexpr std::string_view kSpace = "aten::";
  if (name.starts_with(kSpace)) name.remove_prefix(kSpace.size());
  if (name.ends_with('_')) name.remove_suffix(1);
  return name;
}

// As "avg_pool2d" says it.
int last_dims_of(std::string_view name) {
  if (name.find("1d") != name.npos) return 1;
  return name.find("2d") != name.npos ? 2 : 3;
}

bool gives_same_values_of(const c10::FunctionSchema& schema) {
  const std::vector<c10::Argument>& returns = schema.returns();
  if (returns.empty()) return true;
  const c10::AliasInfo* const alias = returns.front().alias_info();
  if (alias != nullptr) return !alias->isWrite();
  return schema.name() == "aten::clone" || schema.name() == "aten::_to_copy";
}

}  // namespace

OperatorFacts::OperatorFacts(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string_view name = name_of(op);
  kind = kind_of(name);
  gives_same_values = gives_same_values_of(schema);
  const c10::AliasInfo* const alias =
      schema.returns().empty() ? nullptr : schema.returns().front().alias_info();
  writes = alias != nullptr && alias->isWrite();
  adds = name == "add";
  arguments = schema.arguments().size();
  results = schema.returns().size();
  visit_fields(static_cast<ArgumentPositions&>(*this), [&schema](const char* of, int& position) {
    position = schema.argumentIndexWithName(of).value_or(-1);
  });
  last_dims = kind == Kind::kLastDims ? last_dims_of(name) : 0;
}

const OperatorFacts& facts_of(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<c10::OperatorHandle, OperatorFacts> facts;
  return facts.try_emplace(op, op).first->second;
}

}  // namespace accelerate
