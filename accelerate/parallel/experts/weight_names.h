/// The tensors of a mixture of experts in the files of transformers' models, which have a tensor
/// for each expert where a MixtureOfExperts has all experts in one.
///
///     load(model, stacked_experts(read_safetensors(file), ExpertNames::kMixtral));
///
/// Only what belongs to a mixture gets another name, behind the mixture's own path, which stays:
/// "model.layers.0.block_sparse_moe.experts.3.w1.weight" is the fourth part of
/// "model.layers.0.block_sparse_moe.experts.gate". Other tensors stay as they are, also those of
/// routers by other rules, as DeepSeek-V3's e_score_correction_bias.
///
/// Local. Threads: pure functions.
/// Mirrors: the names of transformers' MixtralForCausalLM, Qwen2MoeForCausalLM,
///          Qwen3MoeForCausalLM and DeepseekV2ForCausalLM.
#pragma once

#include "accelerate/base/enum_text.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {

/// Whose names they are.
enum class ExpertNames {
  kMixtral,   ///< block_sparse_moe: gate, experts.N.w1, w3 and w2
  kQwen,      ///< mlp: gate, experts.N.gate_proj, ..., shared_expert, shared_expert_gate
  kDeepSeek,  ///< mlp: gate, experts.N.gate_proj, ..., shared_experts
};

ACCELERATE_ENUM_TEXTS(ExpertNames, "names of experts", "mixtral", "qwen", "deepseek")

/// The tensors by a MixtureOfExperts' names: experts behind each other, in memory of their own, at
/// the place of their first one; others are the same tensors.
/// Errors: c10::ValueError naming an expert that is missing, or the second one of a number, and
///         c10::Error for experts of different sizes.
NamedTensors stacked_experts(const NamedTensors& tensors, ExpertNames names);

/// The same the other way round. Experts are views of their parts.
NamedTensors separate_experts(const NamedTensors& tensors, ExpertNames names);

}  // namespace accelerate
