#include "accelerate/comm/watch/collective_call.h"

#include <numeric>

#include <c10/util/Exception.h>

namespace accelerate {
namespace {

using c10d::OpType;
using c10d::ReduceOp;
using Tensors = CollectiveCall::Tensors;
using Lists = CollectiveCall::Lists;

void check_contiguous(const at::Tensor& tensor, OpType op) {
  TORCH_CHECK_VALUE(tensor.defined(), op_name(op), ": undefined tensor");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, op_name(op), ": tensors must be dense");
  TORCH_CHECK_VALUE(tensor.is_contiguous(tensor.suggest_memory_format()), op_name(op),
                    ": tensors must be contiguous, got shape ", tensor.sizes(), " with strides ",
                    tensor.strides());
}

// `which` is "input" or "output", here and below.
void check_count(const Tensors& tensors, size_t expected, OpType op, const char* which) {
  TORCH_CHECK_VALUE(tensors.size() == expected, op_name(op), ": expected ", expected, " ", which,
                    " tensor(s), got ", tensors.size());
  for (const at::Tensor& tensor : tensors) check_contiguous(tensor, op);
}

void check_list_count(Lists lists, size_t expected, OpType op, const char* which) {
  TORCH_CHECK_VALUE(lists.size() == expected, op_name(op), ": expected ", expected, " ", which,
                    " list(s), got ", lists.size());
}

void check_alike(const at::Tensor& tensor, const at::Tensor& like, OpType op, const char* which) {
  TORCH_CHECK_VALUE(tensor.scalar_type() == like.scalar_type() && tensor.numel() == like.numel(),
                    op_name(op), ": ", which, " tensor has ", tensor.numel(), " elements of ",
                    tensor.scalar_type(), ", expected ", like.numel(), " of ", like.scalar_type());
}

// One list of `size` tensors, one per rank, each as large as `like`. Only the root of an operation
// that has one passes such a list.
void check_by_rank(Lists lists, const at::Tensor& like, int size, bool passes, OpType op,
                   const char* which) {
  check_list_count(lists, passes ? 1 : 0, op, which);
  if (!passes) return;
  check_count(lists[0], size, op, which);
  for (const at::Tensor& tensor : lists[0]) check_alike(tensor, like, op, which);
}

// wholes[i] is `count` times parts[i], one after the other.
void check_wholes(const Tensors& wholes, const Tensors& parts, int count, OpType op) {
  for (size_t i = 0; i < wholes.size(); ++i) {
    const at::Tensor& whole = wholes[i];
    const at::Tensor& part = parts[i];
    TORCH_CHECK_VALUE(whole.is_contiguous() && part.is_contiguous(), op_name(op),
                      ": tensors must be contiguous");
    TORCH_CHECK_VALUE(
        whole.scalar_type() == part.scalar_type() && whole.numel() == part.numel() * count,
        op_name(op), ": the larger tensor has ", whole.numel(), " elements of ",
        whole.scalar_type(), ", expected ", count, " times ", part.numel(), " of ",
        part.scalar_type());
  }
}

// Rows of `tensor` for each of `size` ranks; no splits mean equal ones.
void check_splits(c10::IntArrayRef splits, const at::Tensor& tensor, int size, const char* which) {
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (splits.empty()) {
    TORCH_CHECK_VALUE(rows % size == 0, "all_to_all_single: ", which, " has ", rows,
                      " rows, which do not divide among ", size, " ranks");
    return;
  }
  TORCH_CHECK_VALUE(splits.size() == static_cast<size_t>(size), "all_to_all_single: expected ",
                    size, " ", which, " splits, got ", splits.size());
  for (int64_t split : splits) {
    TORCH_CHECK_VALUE(split >= 0, "all_to_all_single: a ", which, " split of ", split, " rows");
  }
  const int64_t total = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  TORCH_CHECK_VALUE(total == rows, "all_to_all_single: ", which, " splits add up to ", total,
                    ", the tensor has ", rows, " rows");
}

void check_rank(int64_t rank, int size) {
  TORCH_CHECK_VALUE(rank >= 0 && rank < size, "rank ", rank, " is outside a group of ", size);
}

void check_reducible(ReduceOp::RedOpType op, at::ScalarType dtype) {
  auto check = [&](bool allowed) {
    TORCH_CHECK_NOT_IMPLEMENTED(allowed, "cannot reduce ", c10::toString(dtype), " by ",
                                op == ReduceOp::UNUSED ? "UNUSED" : reduce_op_name(op));
  };
  check(op != ReduceOp::UNUSED);
  if (op == ReduceOp::AVG) check(dtype != at::kComplexHalf);
  check(!c10::isFloat8Type(dtype) && !c10::isQIntType(dtype) &&
        !c10::isBarebonesUnsignedType(dtype));
  const bool sums = op == ReduceOp::SUM || op == ReduceOp::AVG || op == ReduceOp::PREMUL_SUM;
  if (c10::isComplexType(dtype)) check(sums);
  if (op == ReduceOp::BAND || op == ReduceOp::BOR || op == ReduceOp::BXOR) {
    check(c10::isIntegralType(dtype, /*includeBool=*/true));
  }
  if (op == ReduceOp::AVG || op == ReduceOp::PREMUL_SUM) check(dtype != at::kBool);
  if (op == ReduceOp::PREMUL_SUM) check(!c10::isIntegralType(dtype, /*includeBool=*/true));
}

void check_sparse_sum(const Tensors& tensors, const ReduceOp& op) {
  TORCH_CHECK_VALUE(tensors.size() == 1 && tensors[0].is_sparse(),
                    "all_reduce_sparse: expected one sparse tensor");
  TORCH_CHECK_VALUE(op.op_ == ReduceOp::SUM, "all_reduce_sparse: only sums are defined");
}

}  // namespace

std::vector<at::Tensor> flattened(Lists lists) {
  Tensors all;
  for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

const Tensors& CollectiveCall::share() const {
  static const Tensors kNone;
  switch (op) {
    case OpType::BARRIER: return kNone;
    case OpType::SCATTER:
    case OpType::REDUCE_SCATTER:
    case OpType::_REDUCE_SCATTER_BASE:
    case OpType::RECV:
    case OpType::RECVANYSOURCE: return outputs[0];
    default: return inputs[0];
  }
}

CollectiveFingerprint CollectiveCall::describe() const {
  CollectiveFingerprint fingerprint(op);
  if (reduce_op != nullptr) fingerprint.reduce_op = reduce_op->op_;
  fingerprint.root = static_cast<int>(root);
  fingerprint.peer = peer;
  fingerprint.tag = tag;
  fingerprint.shapes_may_differ = op == OpType::ALLTOALL || op == OpType::ALLTOALL_BASE;
  for (const at::Tensor& tensor : share()) fingerprint.add(tensor);
  return fingerprint;
}

OpType check_call(const CollectiveCall& call, int rank, int size) {
  OpType op = call.op;
  const Tensors& share = call.share();
  if (op == OpType::ALLREDUCE && share.size() == 1 && share[0].is_sparse()) {
    op = OpType::_ALLREDUCE_SPARSE;
  }
  switch (op) {
    case OpType::BARRIER: return op;
    case OpType::_ALLREDUCE_SPARSE: check_sparse_sum(share, *call.reduce_op); break;
    case OpType::ALLREDUCE_COALESCED:
      TORCH_CHECK_VALUE(!share.empty(), "all_reduce_coalesced: no tensors");
      [[fallthrough]];
    case OpType::ALLGATHER_COALESCED:
    case OpType::_ALLGATHER_BASE: check_count(share, share.size(), op, "input"); break;
    case OpType::_REDUCE_SCATTER_BASE:
      check_count(call.inputs[0], call.inputs[0].size(), op, "input");
      check_count(share, call.inputs[0].size(), op, "output");
      break;
    case OpType::ALLTOALL: check_count(share, size, op, "input"); break;
    case OpType::SCATTER:
    case OpType::REDUCE_SCATTER:
    case OpType::RECV:
    case OpType::RECVANYSOURCE: check_count(share, 1, op, "output"); break;
    default: check_count(share, 1, op, "input"); break;
  }
  switch (op) {
    case OpType::BROADCAST:
    case OpType::REDUCE: check_rank(call.root, size); break;
    case OpType::GATHER:
      check_rank(call.root, size);
      check_by_rank(call.outputs, share[0], size, rank == call.root, op, "output");
      break;
    case OpType::SCATTER:
      check_rank(call.root, size);
      check_by_rank(call.inputs, share[0], size, rank == call.root, op, "input");
      break;
    case OpType::ALLGATHER: check_by_rank(call.outputs, share[0], size, true, op, "output"); break;
    case OpType::REDUCE_SCATTER:
      check_by_rank(call.inputs, share[0], size, true, op, "input");
      break;
    case OpType::ALLGATHER_COALESCED:
      check_list_count(call.outputs, size, op, "output");
      for (const Tensors& of_rank : call.outputs) {
        check_count(of_rank, share.size(), op, "output");
        for (size_t i = 0; i < share.size(); ++i) check_alike(of_rank[i], share[i], op, "output");
      }
      break;
    case OpType::_ALLGATHER_BASE:
      check_count(call.outputs[0], share.size(), op, "output");
      check_wholes(call.outputs[0], share, size, op);
      break;
    case OpType::_REDUCE_SCATTER_BASE: check_wholes(call.inputs[0], share, size, op); break;
    case OpType::ALLTOALL_BASE:
      check_contiguous(call.outputs[0][0], op);
      check_splits(call.input_splits, share[0], size, "input");
      check_splits(call.output_splits, call.outputs[0][0], size, "output");
      break;
    case OpType::ALLTOALL: check_count(call.outputs[0], size, op, "output"); break;
    case OpType::SEND:
    case OpType::RECV: check_rank(call.peer, size); break;
    default: break;
  }
  if (call.reduce_op != nullptr) {
    for (const at::Tensor& tensor : share) {
      check_reducible(call.reduce_op->op_, tensor.scalar_type());
    }
  }
  return op;
}

using WorkPtr = CallBackend::WorkPtr;

WorkPtr CallBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return issue({.op = OpType::BROADCAST,
                .inputs = tensors,
                .timeout = options.timeout,
                .root = options.rootRank,
                .repeat = [&](Backend& backend) { return backend.broadcast(tensors, options); }});
}

WorkPtr CallBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return issue({.op = OpType::ALLREDUCE,
                .inputs = tensors,
                .timeout = options.timeout,
                .reduce_op = &options.reduceOp,
                .repeat = [&](Backend& backend) { return backend.allreduce(tensors, options); }});
}

WorkPtr CallBackend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return issue(
      {.op = OpType::_ALLREDUCE_SPARSE,
       .inputs = tensors,
       .timeout = options.timeout,
       .reduce_op = &options.reduceOp,
       .repeat = [&](Backend& backend) { return backend.allreduce_sparse(tensors, options); }});
}

WorkPtr CallBackend::allreduce_coalesced(Tensors& tensors,
                                         const c10d::AllreduceCoalescedOptions& options) {
  return issue(
      {.op = OpType::ALLREDUCE_COALESCED,
       .inputs = tensors,
       .timeout = options.timeout,
       .reduce_op = &options.reduceOp,
       .repeat = [&](Backend& backend) { return backend.allreduce_coalesced(tensors, options); }});
}

WorkPtr CallBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return issue({.op = OpType::REDUCE,
                .inputs = tensors,
                .timeout = options.timeout,
                .reduce_op = &options.reduceOp,
                .root = options.rootRank,
                .repeat = [&](Backend& backend) { return backend.reduce(tensors, options); }});
}

WorkPtr CallBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                               const c10d::AllgatherOptions& options) {
  return issue(
      {.op = OpType::ALLGATHER,
       .inputs = inputs,
       .outputs = outputs,
       .timeout = options.timeout,
       .repeat = [&](Backend& backend) { return backend.allgather(outputs, inputs, options); }});
}

WorkPtr CallBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                     const c10d::AllgatherOptions& options) {
  const Tensors inputs{input};
  const Tensors outputs{output};
  return issue({.op = OpType::_ALLGATHER_BASE,
                .inputs = inputs,
                .outputs = outputs,
                .timeout = options.timeout,
                .repeat = [&](Backend& backend) {
                  return backend._allgather_base(output, input, options);
                }});
}

WorkPtr CallBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                         const c10d::AllgatherOptions& options) {
  return issue({.op = OpType::ALLGATHER_COALESCED,
                .inputs = inputs,
                .outputs = outputs,
                .timeout = options.timeout,
                .repeat = [&](Backend& backend) {
                  return backend.allgather_coalesced(outputs, inputs, options);
                }});
}

WorkPtr CallBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                     const c10d::AllgatherOptions& options) {
  return issue({.op = OpType::_ALLGATHER_BASE,
                .inputs = inputs,
                .outputs = outputs,
                .timeout = options.timeout,
                .repeat = [&](Backend& backend) {
                  return backend.allgather_into_tensor_coalesced(outputs, inputs, options);
                }});
}

WorkPtr CallBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                            const c10d::GatherOptions& options) {
  return issue(
      {.op = OpType::GATHER,
       .inputs = inputs,
       .outputs = outputs,
       .timeout = options.timeout,
       .root = options.rootRank,
       .repeat = [&](Backend& backend) { return backend.gather(outputs, inputs, options); }});
}

WorkPtr CallBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                             const c10d::ScatterOptions& options) {
  return issue(
      {.op = OpType::SCATTER,
       .inputs = inputs,
       .outputs = outputs,
       .timeout = options.timeout,
       .root = options.rootRank,
       .repeat = [&](Backend& backend) { return backend.scatter(outputs, inputs, options); }});
}

WorkPtr CallBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                    const c10d::ReduceScatterOptions& options) {
  return issue({.op = OpType::REDUCE_SCATTER,
                .inputs = inputs,
                .outputs = outputs,
                .timeout = options.timeout,
                .reduce_op = &options.reduceOp,
                .repeat = [&](Backend& backend) {
                  return backend.reduce_scatter(outputs, inputs, options);
                }});
}

WorkPtr CallBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::ReduceScatterOptions& options) {
  const Tensors inputs{input};
  const Tensors outputs{output};
  return issue({.op = OpType::_REDUCE_SCATTER_BASE,
                .inputs = inputs,
                .outputs = outputs,
                .timeout = options.timeout,
                .reduce_op = &options.reduceOp,
                .repeat = [&](Backend& backend) {
                  return backend._reduce_scatter_base(output, input, options);
                }});
}

WorkPtr CallBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                     const c10d::ReduceScatterOptions& options) {
  return issue({.op = OpType::_REDUCE_SCATTER_BASE,
                .inputs = inputs,
                .outputs = outputs,
                .timeout = options.timeout,
                .reduce_op = &options.reduceOp,
                .repeat = [&](Backend& backend) {
                  return backend.reduce_scatter_tensor_coalesced(outputs, inputs, options);
                }});
}

WorkPtr CallBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                   std::vector<int64_t>& output_splits,
                                   std::vector<int64_t>& input_splits,
                                   const c10d::AllToAllOptions& options) {
  const Tensors inputs{input};
  const Tensors outputs{output};
  return issue({.op = OpType::ALLTOALL_BASE,
                .inputs = inputs,
                .outputs = outputs,
                .timeout = options.timeout,
                .input_splits = input_splits,
                .output_splits = output_splits,
                .repeat = [&](Backend& backend) {
                  return backend.alltoall_base(output, input, output_splits, input_splits, options);
                }});
}

WorkPtr CallBackend::alltoall(Tensors& outputs, Tensors& inputs,
                              const c10d::AllToAllOptions& options) {
  return issue(
      {.op = OpType::ALLTOALL,
       .inputs = inputs,
       .outputs = outputs,
       .timeout = options.timeout,
       .repeat = [&](Backend& backend) { return backend.alltoall(outputs, inputs, options); }});
}

WorkPtr CallBackend::send(Tensors& tensors, int destination, int tag) {
  return issue(
      {.op = OpType::SEND,
       .inputs = tensors,
       .peer = destination,
       .tag = tag,
       .repeat = [&](Backend& backend) { return backend.send(tensors, destination, tag); }});
}

WorkPtr CallBackend::recv(Tensors& tensors, int source, int tag) {
  return issue({.op = OpType::RECV,
                .outputs = tensors,
                .peer = source,
                .tag = tag,
                .repeat = [&](Backend& backend) { return backend.recv(tensors, source, tag); }});
}

WorkPtr CallBackend::recvAnysource(Tensors& tensors, int tag) {
  return issue({.op = OpType::RECVANYSOURCE,
                .outputs = tensors,
                .tag = tag,
                .repeat = [&](Backend& backend) { return backend.recvAnysource(tensors, tag); }});
}

WorkPtr CallBackend::barrier(const c10d::BarrierOptions& options) {
  return issue({.op = OpType::BARRIER, .timeout = options.timeout, .repeat = [&](Backend& backend) {
                  return backend.barrier(options);
                }});
}

void CallBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool /*wait_all_ranks*/) {
  barrier(options)->wait(kNoTimeout);
}

}  // namespace accelerate
