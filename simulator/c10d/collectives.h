/// What each collective does to its members' tensors. Pure functions: no waiting, no matching, no
/// virtual time. Devices' tensors are worked on where they lie, in the host's memory.
///
/// Reductions go in rank order, pairwise in the tensors' own dtype: ((r0 + r1) + r2) + ... Results
/// therefore depend neither on the schedule nor on the number of threads, and for two ranks they
/// equal Gloo's bit for bit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "accelerate/comm/watch/collective_fingerprint.h"

namespace accelerate::simulator {

/// One member's side of an operation. How tensors are laid out per operation (n = group size):
///   broadcast, all_reduce, reduce, all_reduce_coalesced: `inputs`, in place
///   all_gather, all_gather_coalesced: `inputs` [k], `outputs` [n * k] by rank, then tensor
///   gather: `inputs` [1], `outputs` [n] on the root
///   scatter: `inputs` [n] on the root, `outputs` [1]
///   reduce_scatter: `inputs` [n], `outputs` [1]
///   all_gather_into_tensor, reduce_scatter_tensor: `inputs` [k], `outputs` [k]
///   all_to_all: `inputs` [n], `outputs` [n]
///   all_to_all_single: `inputs` [1], `outputs` [1]; rows per rank in the splits
///   send: `inputs`; recv: `outputs`
struct Call {
  bool joined = false;
  CollectiveFingerprint fingerprint;
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  c10d::ReduceOp reduce_op = c10d::ReduceOp::SUM;
  std::vector<int64_t> input_splits;
  std::vector<int64_t> output_splits;
  /// When the member's data is there, in virtual time, and when the member gives up.
  int64_t ready_ns = 0;
  int64_t deadline_ns = INT64_MAX;
  /// The stream of the member's device that communicates; -1: on CPU tensors.
  int stream = -1;
};

/// The bytes that the network model wants to know for this call: see Network::collective.
int64_t message_bytes(const Call& call, size_t group_size);

/// Carries out a collective whose fingerprints agree.
/// Returns: what is wrong, naming group ranks, when members' sizes do not fit together.
std::optional<std::string> run_calls(std::vector<Call>& calls);

/// Moves a message.
/// Returns: what is wrong when sizes or dtypes differ.
std::optional<std::string> run_message(const Call& sender, const Call& receiver);

}  // namespace accelerate::simulator
