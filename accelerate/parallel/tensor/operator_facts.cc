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
// consist of these.
Kind kind_of(std::string_view name) {
  using enum Kind;
  static const auto* const kinds = new absl::flat_hash_map<std::string_view, Kind>{
      {"_log_softmax", kReduction},
      {"_reshape_alias", kView},
      {"_softmax", kReduction},
      {"_unsafe_view", kView},
      {"all", kReduction},
      {"amax", kReduction},
      {"amin", kReduction},
      {"any", kReduction},
      {"argmax", kReduction},
      {"argmin", kReduction},
      {"argsort", kReduction},
      {"bmm", kProduct},
      {"cat", kSameDims},
      {"chunk", kSameDims},
      {"cross_entropy_loss", kAllDims},
      {"cumprod", kReduction},
      {"cumsum", kReduction},
      {"flatten", kView},
      {"gather", kSameDims},
      {"glu", kSameDims},
      {"group_norm", kAllDims},
      {"index_select", kSameDims},
      {"layer_norm", kNorm},
      {"linalg_vector_norm", kReduction},
      {"linear", kLinear},
      {"log_softmax", kReduction},
      {"logsumexp", kReduction},
      {"matmul", kProduct},
      {"max", kReduction},
      {"mean", kReduction},
      {"min", kReduction},
      {"mm", kProduct},
      {"narrow", kSameDims},
      {"native_group_norm", kAllDims},
      {"native_layer_norm", kNorm},
      {"nll_loss", kAllDims},
      {"nll_loss_nd", kAllDims},
      {"norm", kReduction},
      {"permute", kPermute},
      {"prod", kReduction},
      {"reshape", kView},
      {"rms_norm", kNorm},
      {"scaled_dot_product_attention", kSameDims},
      {"select", kSelect},
      {"slice", kSameDims},
      {"softmax", kReduction},
      {"sort", kReduction},
      {"split", kSameDims},
      {"split_with_sizes", kSameDims},
      {"squeeze", kSqueeze},
      {"std", kReduction},
      {"std_mean", kReduction},
      {"sum", kReduction},
      {"t", kMatrixTranspose},
      {"topk", kReduction},
      {"transpose", kTranspose},
      {"unbind", kSelect},
      {"unflatten", kView},
      {"unsqueeze", kUnsqueeze},
      {"var", kReduction},
      {"var_mean", kReduction},
      {"view", kView},
      {"_fused_rms_norm", kNorm},
  };
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
  adds = name == "add";
  arguments = schema.arguments().size();
  results = schema.returns().size();
  dim = position("dim");
  dim0 = position("dim0");
  dim1 = position("dim1");
  dims = position("dims");
  normalized_shape = position("normalized_shape");
  other = position("other");
}

const OperatorFacts& facts_of(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<c10::OperatorHandle, OperatorFacts> facts;
  return facts.try_emplace(op, op).first->second;
}

}  // namespace accelerate
