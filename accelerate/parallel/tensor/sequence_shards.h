/// Where a model's sequences become parts, if its plan of tensor parallelism has sequence shards
/// (TensorParallelPlan::sequence_parallel).
///
///     torch::Tensor x = tokens(words) + positions;
///     x = accelerate::shard_sequence(x);       // [batch, length / ranks, hidden] from here on
///     for (const auto& layer : *layers) x = accelerate::block(layer, x);
///     return head(norm(x));                    // of whole sequences
///
/// After an embedding that begins with parts by its rule the call changes nothing.
/// Stages of a pipeline hand each other whole sequences, so that each of them begins with the call:
/// forward_parts (config/model_parts.h) makes it for its first part, whichever that is.
/// Threads: that of the model's forward pass.
#pragma once

#include <ATen/core/Tensor.h>

namespace accelerate {

/// This rank's part of sequences that ranks along tp have alike, along the dim before the last; the
/// tensor itself outside of a forward pass of such a model, and if it is a part already. Its
/// gradient is put together of the ranks' parts. Local; its backward pass is collective.
/// Errors: c10::ValueError naming the rank, for a length that the ranks do not divide evenly, with
///         the next one that they do.
at::Tensor shard_sequence(const at::Tensor& whole);

/// All of sequences of which ranks along tp have parts, for a layer that computes the same with
/// them on each of these ranks, and passes its result through shard_sequence; the tensor itself
/// where sequences are whole. Collective over ranks along tp with parts; nothing is sent backward,
/// because each rank has the whole's gradient.
at::Tensor whole_sequence(const at::Tensor& part);

}  // namespace accelerate
