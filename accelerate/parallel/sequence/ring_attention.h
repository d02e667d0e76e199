/// Attention where each rank has some tokens of each sequence.
///
/// A rank computes what its queries give with the keys and values of all ranks, block by block, and
/// joins the results by their log-sum-exp. Keys and values come
///   - by a ring: each rank hands on what it has computed with, as the one non-zero split of an
///     all-to-all, while it computes; or
///   - at once, by an all-gather, which takes the memory of all keys and values.
/// In the backward pass they come once more, and the gradients of keys and values go the same way:
/// round the ring to the rank that has the keys, or by a reduce-scatter.
///
/// Sums are made in float32 (for double in double); what ranks send has the dtype of the keys. A
/// head of keys that several heads of queries share is sent once. Both ways give the same bits
/// forward.
/// Collective over the group, and so is the backward pass. The current stream of the device waits
/// for what is moved.
/// Errors:  c10::Error in a backward pass with create_graph; the backend's own if ranks disagree.
/// Threads: one call at a time for each group.
#pragma once

#include <ATen/core/Tensor.h>

#include "accelerate/comm/process_group.h"
#include "accelerate/parallel/sequence/attention_block.h"
#include "accelerate/parallel/sequence/sequence_order.h"

namespace accelerate {

/// The ranks that divide sequences, and how they exchange keys and values.
struct ContextRing {
  ProcessGroupPtr group = nullptr;
  SequenceOrder order = SequenceOrder::kBalanced;
  /// By an all-gather; else by a ring.
  bool gathers = true;
};

/// The attention of this rank's queries to all keys that they see. A causal query sees the keys up
/// to its own place in the sequence.
/// Shapes: as attend's; as many keys as queries, and as many on each rank.
at::Tensor ring_attention(const at::Tensor& queries, const at::Tensor& keys,
                          const at::Tensor& values, const AttentionRule& rule,
                          const ContextRing& ring);

}  // namespace accelerate
