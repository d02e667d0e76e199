#include "accelerate/parallel/tensor/operator_facts.h"

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace accelerate {
namespace {

using Kind = OperatorFacts::Kind;

// By the name without "aten::", and without "_" at the end. Others compute element by element, or
// consist of these. One is an operator of this library.
Kind kind_of(std::string_view name) {
  using enum Kind;
  static const auto* const kinds = new absl::flat_hash_map<std::string_view, Kind>{
      {"_index_put_impl", kIndexPut},
      {"_log_softmax", kReduction},
      {"_fft_c2c", kReduction},
      {"_fft_c2r", kReduction},
      {"_fft_r2c", kReduction},
      {"_reshape_alias", kView},
      {"_safe_softmax", kReduction},
      {"_softmax", kReduction},
      {"_unsafe_view", kView},
      {"accelerate::rms_norm", kNorm},
      {"addmm", kAddedProduct},
      {"all", kReduction},
      {"amax", kReduction},
      {"amin", kReduction},
      {"any", kReduction},
      {"argmax", kReduction},
      {"argmin", kReduction},
      {"argsort", kReduction},
      {"as_strided", kCreation},  // a view of another operator, which says more
      {"baddbmm", kAddedProduct},
      {"bmm", kProduct},
      {"cat", kJoin},
      {"chunk", kRange},
      {"conv1d", kAllDims},
      {"conv2d", kAllDims},
      {"conv3d", kAllDims},
      {"conv_transpose1d", kAllDims},
      {"conv_transpose2d", kAllDims},
      {"conv_transpose3d", kAllDims},
      {"convolution", kAllDims},
      {"count_nonzero", kReduction},
      {"cross_entropy_loss", kAllDims},
      {"cummax", kReduction},
      {"cummin", kReduction},
      {"cumprod", kReduction},
      {"cumsum", kReduction},
      {"dot", kAllDims},
      {"einsum", kEinsum},
      {"flatten", kView},
      {"flip", kFlip},
      {"gather", kGather},
      {"glu", kRange},
      {"group_norm", kAllDims},
      {"index", kIndex},
      {"index_add", kScatter},
      {"index_copy", kScatter},
      {"index_fill", kScatter},
      {"index_put", kIndexPut},
      {"index_select", kGather},
      {"kthvalue", kReduction},
      {"layer_norm", kNorm},
      {"linalg_vector_norm", kReduction},
      {"linear", kLinear},
      {"log_softmax", kReduction},
      {"logcumsumexp", kReduction},
      {"logsumexp", kReduction},
      {"masked_scatter", kAllDims},
      {"masked_select", kAllDims},
      {"matmul", kProduct},
      {"max", kReduction},
      {"mean", kReduction},
      {"median", kReduction},
      {"min", kReduction},
      {"mm", kProduct},
      {"mode", kReduction},
      {"multinomial", kAllDims},
      {"mv", kVectorProduct},
      {"nanmean", kReduction},
      {"nanmedian", kReduction},
      {"nansum", kReduction},
      {"narrow", kRange},
      {"native_group_norm", kAllDims},
      {"native_layer_norm", kNorm},
      {"nll_loss", kAllDims},
      {"nll_loss_nd", kAllDims},
      {"nonzero", kAllDims},
      {"norm", kReduction},
      {"permute", kPermute},
      {"prod", kReduction},
      {"renorm", kAllDims},
      {"reshape", kView},
      {"rms_norm", kNorm},
      {"roll", kRoll},
      {"scaled_dot_product_attention", kAttention},
      {"scatter", kScatter},
      {"scatter_add", kScatter},
      {"scatter_reduce", kScatter},
      {"select", kSelect},
      {"slice", kRange},
      {"softmax", kReduction},
      {"sort", kReduction},
      {"split", kRange},
      {"split_with_sizes", kRange},
      {"squeeze", kSqueeze},
      {"stack", kUnsqueeze},
      {"std", kReduction},
      {"std_mean", kReduction},
      {"sum", kReduction},
      {"t", kMatrixTranspose},
      {"take", kAllDims},
      {"topk", kReduction},
      {"transpose", kTranspose},
      {"tril", kTriangle},
      {"triu", kTriangle},
      {"unbind", kSelect},
      {"unflatten", kView},
      {"unsqueeze", kUnsqueeze},
      {"var", kReduction},
      {"var_mean", kReduction},
      {"vdot", kAllDims},
      {"view", kView},
      {"view_as_complex", kSameDims},
      {"view_as_real", kSameDims},
      {"_fused_rms_norm", kNorm},
  };
  // The ways to compute attention, which give statistics besides.
  if (name.starts_with("_scaled_dot_product")) return kAttention;
  if (name.starts_with("new_") || name.starts_with("empty")) return kCreation;
  const auto found = kinds->find(name);
  return found == kinds->end() ? kPointwise : found->second;
}

std::string_view name_of(const c10::OperatorHandle& op) {
  std::string_view name = op.schema().name();
  constexpr std::string_view kSpace = "aten::";
  if (name.starts_with(kSpace)) name.remove_prefix(kSpace.size());
  if (name.ends_with('_')) name.remove_suffix(1);
  return name;
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
  const auto position = [&schema](const std::string& name) {
    return schema.argumentIndexWithName(name).value_or(-1);
  };
  const std::string_view name = name_of(op);
  kind = kind_of(name);
  gives_same_values = gives_same_values_of(schema);
  const c10::AliasInfo* const alias =
      schema.returns().empty() ? nullptr : schema.returns().front().alias_info();
  writes = alias != nullptr && alias->isWrite();
  adds = name == "add";
  arguments = schema.arguments().size();
  results = schema.returns().size();
  dim = position("dim");
  dim0 = position("dim0");
  dim1 = position("dim1");
  dims = position("dims");
  normalized_shape = position("normalized_shape");
  other = position("other");
  start = position("start");
  end = position("end");
  step = position("step");
  length = position("length");
  chunks = position("chunks");
  split_size = position("split_size");
  indices = position("indices");
  equation = position("equation");
  tensors = position("tensors");
  start_dim = position("start_dim");
}

const OperatorFacts& facts_of(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<c10::OperatorHandle, OperatorFacts> facts;
  return facts.try_emplace(op, op).first->second;
}

}  // namespace accelerate
