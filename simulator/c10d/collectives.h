/// The arithmetic and copies of each collective on its members' tensors. The functions do not wait,
/// match calls or change virtual time. Tensors of devices are used in place, in the host's memory.
///
/// Where values are not computed (see simulator/device/shapes.h) no bytes move: if a tensor that
/// any member contributes has no values, no member's result has.
///
/// Reductions are done in rank order, pairwise, in the tensors' own dtype: ((r0 + r1) + r2) + ...
/// Results therefore depend neither on the schedule nor on the number of threads, and for two ranks
/// they equal Gloo's bit for bit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "accelerate/comm/watch/collective_call.h"

namespace accelerate::simulator {

/// One member's call of an operation. The layout of tensors per operation (n = group size):
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
  /// The virtual time at which the member's data is ready, and the time at which the member times
  /// out.
  int64_t ready_ns = 0;
  int64_t deadline_ns = INT64_MAX;
  /// The stream of the member's device that communicates; -1 for CPU tensors.
  int stream = -1;
};

/// Whether a member's result is in its inputs.
bool writes_inputs(const Call& call, int member);

/// The number of bytes that the network model takes for this call: see Network::collective.
int64_t message_bytes(const Call& call, size_t group_size);

/// Carries out a collective whose fingerprints agree.
/// Returns: an error that names group ranks, if members' sizes do not match.
std::optional<std::string> run_calls(std::vector<Call>& calls);

/// Copies a message.
/// Returns: an error if sizes or dtypes differ.
std::optional<std::string> run_message(const Call& sender, const Call& receiver);

}  // namespace accelerate::simulator
