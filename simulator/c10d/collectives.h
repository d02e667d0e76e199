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
#include "simulator/faults/sites.h"
#include "simulator/network/network.h"

namespace accelerate::simulator {

class SimDevice;

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
  /// Ranks that do the same may have different values: see MetricValues.
  bool is_metric = MetricValues::current();
  CollectiveFingerprint fingerprint;
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  c10d::ReduceOp reduce_op = c10d::ReduceOp::SUM;
  std::vector<int64_t> input_splits;
  std::vector<int64_t> output_splits;
  /// The virtual time at which the member's data is ready, and the time at which the member times
  /// out.
  int64_t ready_ns = 0;
  int64_t called_ns = 0;       ///< the host's clock at the call
  bool waits_for_host = true;  ///< the data was ready before the host made the call
  int64_t deadline_ns = INT64_MAX;
  /// The device that the tensors are on, and the stream of it that communicates; null and -1 for
  /// CPU tensors.
  SimDevice* device = nullptr;
  int stream = -1;
  std::vector<SiteFault> faults = {};  ///< of the member's values
};

class Communicator;

/// A collective or a message in flight. Members hold it through their Work. Only the rank that
/// holds the baton may use it.
struct Operation {
  std::vector<Call> calls;  ///< a collective: by executed member; a message: sender, receiver
  int joined = 0;
  bool done = false;
  bool failed = false;       ///< done; Communicator::failure() is the reason
  std::vector<int> waiting;  ///< tasks blocked on it
  int source = -1;           ///< a message: the sender's member number, once known
  int64_t end_ns = 0;        ///< once done: its end in virtual time
  // A collective's.
  Communicator* communicator = nullptr;
  const std::vector<int>* tasks = nullptr;  ///< of its executed members, ascending
  bool carried_out = false;  ///< members have their results, but perhaps not yet the time
  bool is_stuck = false;     ///< carried out, and no link carries it to its end
  int64_t ready_ns = 0;      ///< once carried out: the last member's data is ready
  int64_t awaited_from_ns = INT64_MAX;  ///< the first clock of a host that waits for it
  int64_t bytes = 0;                    ///< of the result; see Network::collective
  std::vector<int64_t> sent;            ///< an all-to-all: to the other members, by executed member
  int64_t start_ns = 0;                 ///< once done
  int channels = 0;                     ///< each of which takes a multiprocessor of every member
  int num_first = 0;                    ///< the members that have no earlier call without a time
  int64_t number_of_call = -1;          ///< of the lowest executed member
  /// The members that have not joined, as text for reports, when `described` had joined.
  std::string missing_ranks = {};
  int described = -1;
};

/// What the network model calls an operation, and whether NVLink's switches can do its reduction.
CollectiveKind collective_kind(c10d::OpType op);
nccl::Reduction reduction_of(const CollectiveFingerprint& fingerprint);

/// Whether a member's result is in its inputs.
bool writes_inputs(const Call& call, int member);

/// Strikes what a member gives, or its results, by the faults of its call. `sites` may be null.
void strike(FaultSites* sites, const Call& call, bool results);

/// Which member made each call of a collective. A member that is folded made none: it counts as
/// another member, whose values it has as well.
struct Members {
  std::vector<int> of_call;  ///< by call: the number of the member that made it; ascending
  std::vector<int> call_of;  ///< by member: its call, or that of the member it counts as

  int size() const { return static_cast<int>(call_of.size()); }
  bool called(int member) const { return of_call[call_of[member]] == member; }

  /// Each of so many members made a call.
  static Members all(int size);
};

/// The number of bytes that the network model takes for an operation: see Network::collective. An
/// uneven all-to-all counts as the even one in which every member moves as much as the busiest one
/// does. `calls`: before run_calls().
int64_t message_bytes(const std::vector<Call>& calls, const Members& members);

/// The bytes that a member of an all-to-all sends to the other members.
int64_t bytes_to_others(const Call& call, int member, int group_size);

/// Carries out a collective whose fingerprints agree.
/// Returns: an error that names group ranks, if members' sizes do not match, or if a folded member
///          would have to give what only the root has.
std::optional<std::string> run_calls(std::vector<Call>& calls, const Members& members);

/// Copies a message.
/// Returns: an error if sizes or dtypes differ.
std::optional<std::string> run_message(const Call& sender, const Call& receiver);

}  // namespace accelerate::simulator
