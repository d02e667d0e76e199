/// Weights under Megatron-Core's names and under Hugging Face's, and their parts along tp and pp.
///
///     const NamedTensors whole = megatron_from_hf(tensors, shape);
///     NamedTensors part = cut_megatron(whole, shape, {.tp = 2, .pp = 2}, {.tp = 1});
///     NamedTensors again = hf_from_megatron(join_megatron(parts, shape, division), shape);
///
/// The models are GPT-2 (transformer.h.0.attn.c_attn...) and Llama (model.layers.0.self_attn...).
/// Megatron-Core's names are those of its local layers; the norms that layers of
/// TransformerEngine hold are read as well, and their "_extra_state" is left out.
///
/// Shapes:  Megatron's fused query, key and value have, for each group of queries, the rows of its
///          queries, its key and its value; its first layer of a gated MLP has the gate's rows
///          before the others.
/// Errors:  c10::ValueError naming the tensor: one that is missing, unknown, of another shape, cut
///          where it cannot be, or not the same on two ranks that have it whole.
/// Threads: pure functions; results may share memory with their arguments.
/// Local.
/// Source:  Megatron-LM, tools/checkpoint.
#pragma once

#include <cstdint>
#include <vector>

#include "accelerate/tensors/state_dict.h"

namespace accelerate {

enum class MegatronModelKind { kGpt2, kLlama };

struct MegatronModelShape {
  MegatronModelKind kind = MegatronModelKind::kGpt2;
  int64_t num_layers = 0;
  int64_t num_attention_heads = 0;
  /// Heads of keys and values: num_attention_heads in GPT-2.
  int64_t num_query_groups = 0;
  /// Rows of the embedding in Hugging Face's files ...
  int64_t vocab_size = 0;
  /// ... and in Megatron's, where those behind are zeros; 0: the same.
  int64_t padded_vocab_size = 0;
  /// The output layer's weight is the embedding's, so it is in neither file.
  bool is_tied = true;
};

/// Numbers of parts. Layers are divided evenly among the chunks of all stages.
struct MegatronDivision {
  int64_t tp = 1;
  int64_t pp = 1;
  /// Chunks of layers that a stage has in an interleaved schedule.
  int64_t chunks = 1;
};

/// Which part, from 0.
struct MegatronPlace {
  int64_t tp = 0;
  int64_t pp = 0;
  int64_t chunk = 0;
};

NamedTensors megatron_from_hf(const NamedTensors& tensors, const MegatronModelShape& shape);
NamedTensors hf_from_megatron(const NamedTensors& tensors, const MegatronModelShape& shape);

/// The part of a rank and chunk of the whole model, with the numbers that layers have there. The
/// last stage of a tied model has the embedding as "output_layer.weight" as well.
NamedTensors cut_megatron(const NamedTensors& whole, const MegatronModelShape& shape,
                          const MegatronDivision& division, const MegatronPlace& place);

/// The whole of all parts: `parts[(pp * chunks + chunk) * tp_size + tp]`.
NamedTensors join_megatron(const std::vector<NamedTensors>& parts, const MegatronModelShape& shape,
                           const MegatronDivision& division);

}  // namespace accelerate
