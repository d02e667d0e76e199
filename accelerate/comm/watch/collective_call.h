/// One call of c10d as a value, and the backend base class that turns every verb into such a value.
///
/// The table of c10d's verbs stands here once: a backend derives from CallBackend and implements
/// `issue`. Backends that carry operations out by themselves first pass the call to `check_call`;
/// one that forwards to another backend uses `CollectiveCall::repeat`.
/// Threads: `describe` and `check_call` are pure functions; CallBackend as its subclass.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "absl/functional/function_ref.h"
#include "accelerate/base/fields.h"
#include "accelerate/base/thread_scope.h"

namespace accelerate {

/// One description of a collective or point-to-point operation as one rank issued it.
///
/// The simulator's mismatch detector, debug mode on real backends and the log of the last
/// operations use it to compare ranks' calls and to report what a rank waits for. Making one
/// allocates nothing for the usual few tensors of few dims.
struct CollectiveFingerprint {
  CollectiveFingerprint() = default;
  explicit CollectiveFingerprint(c10d::OpType op) : op(op) {}

  c10d::OpType op = c10d::OpType::UNKNOWN;
  c10d::ReduceOp::RedOpType reduce_op = c10d::ReduceOp::UNUSED;
  int root = -1;                   ///< rank within the group; -1: the operation has none
  int peer = -1;                   ///< of a point-to-point operation; -1: none, or any
  int tag = -1;                    ///< of a point-to-point operation
  bool shapes_may_differ = false;  ///< ranks need not agree on them, as in an all-to-all
  uint64_t sequence = 0;           ///< count of the group's collectives, from 0
  std::string purpose = {};        ///< what the values are, where a CollectivePurpose says it

  /// Adds a tensor's dtype and shape. A sparse tensor is described by its dense shape; an
  /// undefined one, which every backend refuses, is left out.
  void add(const at::Tensor& tensor);

  /// The first difference between two ranks' calls that should be the same collective, as in
  /// "shape [4] against [5]"; nullopt if there is none.
  std::optional<std::string> difference(const CollectiveFingerprint& other) const;

  /// Equal if there is no difference; ranks exchange it instead of the whole.
  uint64_t hash() const;

  /// As in "all_reduce #3 (sum, Float[4])".
  std::string to_string() const;

  c10::SmallVector<at::ScalarType, 4> dtypes;
  c10::SmallVector<int64_t, 4> dims;    ///< number of dims, per tensor
  c10::SmallVector<int64_t, 12> sizes;  ///< all shapes, one after the other
};
ACCELERATE_FIELDS(CollectiveFingerprint, op, reduce_op, root, peer, tag, shapes_may_differ,
                  sequence, purpose, dtypes, dims, sizes)

/// While it lives, calls that this thread makes are described with the purpose, so that ranks which
/// send different values of the same shape are told apart. The text outlives this.
struct CollectivePurpose : internal::ThreadScope<CollectivePurpose, const std::string*> {
  explicit CollectivePurpose(const std::string& purpose) : ThreadScope(&purpose) {}

  /// The text of the innermost one that lives on this thread; empty without one.
  static std::string current() {
    return ThreadScope::current() != nullptr ? *ThreadScope::current() : std::string();
  }
};

/// While it lives, calls that this thread makes are described as of these values, which they carry
/// as another dtype of the same size, so that ranks whose values differ in it are told apart. The
/// tensor outlives this.
struct CarriedValues : internal::ThreadScope<CarriedValues, const at::Tensor*> {
  explicit CarriedValues(const at::Tensor& values) : ThreadScope(&values) {}
};

/// While it lives, calls that this thread makes on a real backend are compared with the other
/// members' before they run, as in debug mode, where that costs no collective: among members on one
/// machine, and over Gloo.
struct ComparedCalls : internal::ThreadScope<ComparedCalls, bool> {
  ComparedCalls() : ThreadScope(true) {}
};

/// While it lives, collectives that this thread calls gather the values of metrics. Predictions,
/// labels and counts differ between ranks that otherwise do the same, and decide nothing that a
/// rank does next. A simulation that counts one rank for others (folding) takes them as they are;
/// other whole numbers that ranks gather it compares, because lengths, sizes and names decide what
/// ranks do.
struct MetricValues : internal::ThreadScope<MetricValues, bool> {
  MetricValues() : ThreadScope(true) {}
};

/// "all_reduce", "broadcast", ...
const char* op_name(c10d::OpType op);
/// "sum", "avg", ...
const char* reduce_op_name(c10d::ReduceOp::RedOpType op);

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
/// own.
/// Errors: c10::ValueError naming the operation; c10::NotImplementedError for a reduction that is
///         not defined on the dtype. Local.
c10d::OpType check_call(const CollectiveCall& call, int rank, int size);

class CallBackend : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = CollectiveCall::Tensors;
  using OpType = c10d::OpType;

  using Backend::Backend;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) final {
    return begin(OpType::BROADCAST, tensors, {}, options, &Backend::broadcast, tensors);
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) final {
    return begin(OpType::ALLREDUCE, tensors, {}, options, &Backend::allreduce, tensors);
  }
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) final {
    return begin(OpType::_ALLREDUCE_SPARSE, tensors, {}, options, &Backend::allreduce_sparse,
                 tensors);
  }
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) final {
    return begin(OpType::ALLREDUCE_COALESCED, tensors, {}, options, &Backend::allreduce_coalesced,
                 tensors);
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) final {
    return begin(OpType::REDUCE, tensors, {}, options, &Backend::reduce, tensors);
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) final {
    return begin(OpType::ALLGATHER, inputs, outputs, options, &Backend::allgather, outputs, inputs);
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) final {
    return begin(OpType::_ALLGATHER_BASE, Tensors{input}, Tensors{output}, options,
                 &Backend::_allgather_base, output, input);
  }
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) final {
    return begin(OpType::ALLGATHER_COALESCED, inputs, outputs, options,
                 &Backend::allgather_coalesced, outputs, inputs);
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) final {
    return begin(OpType::_ALLGATHER_BASE, inputs, outputs, options,
                 &Backend::allgather_into_tensor_coalesced, outputs, inputs);
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) final {
    return begin(OpType::GATHER, inputs, outputs, options, &Backend::gather, outputs, inputs);
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) final {
    return begin(OpType::SCATTER, inputs, outputs, options, &Backend::scatter, outputs, inputs);
  }
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) final {
    return begin(OpType::REDUCE_SCATTER, inputs, outputs, options, &Backend::reduce_scatter,
                 outputs, inputs);
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) final {
    return begin(OpType::_REDUCE_SCATTER_BASE, Tensors{input}, Tensors{output}, options,
                 &Backend::_reduce_scatter_base, output, input);
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) final {
    return begin(OpType::_REDUCE_SCATTER_BASE, inputs, outputs, options,
                 &Backend::reduce_scatter_tensor_coalesced, outputs, inputs);
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) final {
    const Tensors inputs{input};
    const Tensors outputs{output};
    auto repeat = [&](Backend& backend) {
      return backend.alltoall_base(output, input, output_splits, input_splits, options);
    };
    return issue({.op = OpType::ALLTOALL_BASE,
                  .inputs = inputs,
                  .outputs = outputs,
                  .timeout = options.timeout,
                  .input_splits = input_splits,
                  .output_splits = output_splits,
                  .repeat = repeat});
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) final {
    return begin(OpType::ALLTOALL, inputs, outputs, options, &Backend::alltoall, outputs, inputs);
  }
  WorkPtr send(Tensors& tensors, int destination, int tag) final {
    auto repeat = [&](Backend& backend) { return backend.send(tensors, destination, tag); };
    return issue(
        {.op = OpType::SEND, .inputs = tensors, .peer = destination, .tag = tag, .repeat = repeat});
  }
  WorkPtr recv(Tensors& tensors, int source, int tag) final {
    auto repeat = [&](Backend& backend) { return backend.recv(tensors, source, tag); };
    return issue(
        {.op = OpType::RECV, .outputs = tensors, .peer = source, .tag = tag, .repeat = repeat});
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) final {
    auto repeat = [&](Backend& backend) { return backend.recvAnysource(tensors, tag); };
    return issue({.op = OpType::RECVANYSOURCE, .outputs = tensors, .tag = tag, .repeat = repeat});
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) final {
    return begin(OpType::BARRIER, {}, {}, options, &Backend::barrier);
  }
  /// A barrier that is waited for: the report of any failed barrier names the missing ranks, which
  /// is all that a monitored one adds.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool /*wait_all_ranks*/) override {
    barrier(options)->wait(kNoTimeout);
  }

 private:
  using Lists = CollectiveCall::Lists;

  /// Begins the operation.
  virtual WorkPtr issue(const CollectiveCall& call) = 0;

  // Issues a collective with what its options say. `verb` is c10d's function for it, which takes
  // `arguments` and the options.
  template <typename Options, typename Verb, typename... Arguments>
  WorkPtr begin(OpType op, Lists inputs, Lists outputs, const Options& options, Verb verb,
                Arguments&... arguments) {
    const c10d::ReduceOp* reduce_op = nullptr;
    if constexpr (requires { options.reduceOp; }) reduce_op = &options.reduceOp;
    int64_t root = -1;
    if constexpr (requires { options.rootRank; }) root = options.rootRank;
    auto repeat = [&](Backend& backend) { return (backend.*verb)(arguments..., options); };
    return issue({.op = op,
                  .inputs = inputs,
                  .outputs = outputs,
                  .timeout = options.timeout,
                  .reduce_op = reduce_op,
                  .root = root,
                  .repeat = repeat});
  }
};

}  // namespace accelerate
