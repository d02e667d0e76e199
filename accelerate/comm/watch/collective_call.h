/// One call of c10d as a value, and the backend base class that turns every verb into such a value.
///
/// The table of c10d's verbs stands here once: a backend derives from CallBackend and implements
/// `issue`. Backends that carry operations out by themselves first pass the call to `check_call`;
/// one that forwards to another backend uses `CollectiveCall::repeat`.
/// Threads: `describe` and `check_call` are pure functions; CallBackend as its subclass.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "absl/functional/function_ref.h"
#include "accelerate/comm/watch/collective_fingerprint.h"

namespace accelerate {

/// A call of one verb with its options. Everything is a view of the caller's arguments and valid
/// only during CallBackend::issue.
struct CollectiveCall {
  using Tensors = std::vector<at::Tensor>;
  using Lists = c10::ArrayRef<Tensors>;

  c10d::OpType op = c10d::OpType::UNKNOWN;
  /// Lists of tensors. A verb that takes a flat list, or one tensor, has exactly one list. A verb
  /// that works in place, and a send, has `inputs` alone; a receive has `outputs` alone.
  Lists inputs = {};
  Lists outputs = {};
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
  const c10d::ReduceOp* reduce_op = nullptr;  ///< null: the verb does not reduce
  int64_t root = -1;                          ///< rank within the group; -1: the verb has none
  int peer = -1;                              ///< of a message; -1: none, or any
  int tag = -1;                               ///< of a message
  c10::IntArrayRef input_splits = {};
  c10::IntArrayRef output_splits = {};
  /// Makes the same call on another backend.
  absl::FunctionRef<c10::intrusive_ptr<c10d::Work>(c10d::Backend& backend)> repeat;

  /// The tensors whose dtypes and shapes ranks compare: one rank's share of the operation.
  const Tensors& share() const;
  CollectiveFingerprint describe() const;
};

/// The tensors of all lists, in order.
std::vector<at::Tensor> flattened(CollectiveCall::Lists lists);

/// Checks what can be wrong with a call by itself, before anything is sent: this rank alone throws,
/// and the group stays usable. As strict as NCCL and Gloo: eight-bit floats travel but are not
/// summed, complex numbers are only summed, tensors are contiguous in some memory format.
/// Returns: the operation to carry out; an all-reduce of a sparse tensor is an operation of its
/// own. Errors: c10::ValueError naming the operation; c10::NotImplementedError for a reduction that
/// is
///         not defined on the dtype. Local.
c10d::OpType check_call(const CollectiveCall& call, int rank, int size);

class CallBackend : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = CollectiveCall::Tensors;

  using Backend::Backend;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) final;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) final;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) final;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) final;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) final;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) final;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) final;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) final;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) final;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) final;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) final;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) final;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) final;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) final;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) final;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) final;
  WorkPtr send(Tensors& tensors, int destination, int tag) final;
  WorkPtr recv(Tensors& tensors, int source, int tag) final;
  WorkPtr recvAnysource(Tensors& tensors, int tag) final;
  WorkPtr barrier(const c10d::BarrierOptions& options) final;
  /// A barrier that is waited for: the report of any failed barrier names the missing ranks, which
  /// is all that a monitored one adds.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

 private:
  /// Begins the operation.
  virtual WorkPtr issue(const CollectiveCall& call) = 0;
};

}  // namespace accelerate
