#include "accelerate/comm/watch/collective_call.h"

#include <numeric>

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

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

std::string tensors_to_string(const CollectiveFingerprint& call) {
  // A bucketed or coalesced call can carry hundreds of tensors; a person reads the first few.
  constexpr size_t kShown = 4;
  std::vector<std::string> shown;
  const int64_t* next = call.sizes.data();
  for (size_t i = 0; i < call.dtypes.size() && i < kShown; ++i) {
    shown.push_back(absl::StrCat(c10::toString(call.dtypes[i]), "[",
                                 absl::StrJoin(next, next + call.dims[i], ", "), "]"));
    next += call.dims[i];
  }
  if (call.dtypes.size() > kShown)
    shown.push_back(absl::StrCat("and ", call.dtypes.size() - kShown, " more"));
  return absl::StrJoin(shown, ", ");
}

}  // namespace

const char* op_name(OpType op) {
  switch (op) {
    case OpType::BROADCAST: return "broadcast";
    case OpType::ALLREDUCE: return "all_reduce";
    case OpType::ALLREDUCE_COALESCED: return "all_reduce_coalesced";
    case OpType::REDUCE: return "reduce";
    case OpType::ALLGATHER: return "all_gather";
    case OpType::_ALLGATHER_BASE: return "all_gather_into_tensor";
    case OpType::ALLGATHER_COALESCED: return "all_gather_coalesced";
    case OpType::GATHER: return "gather";
    case OpType::SCATTER: return "scatter";
    case OpType::REDUCE_SCATTER: return "reduce_scatter";
    case OpType::ALLTOALL_BASE: return "all_to_all_single";
    case OpType::ALLTOALL: return "all_to_all";
    case OpType::SEND: return "send";
    case OpType::RECV: return "recv";
    case OpType::RECVANYSOURCE: return "recv_any";
    case OpType::BARRIER: return "barrier";
    case OpType::_REDUCE_SCATTER_BASE: return "reduce_scatter_tensor";
    case OpType::COALESCED: return "coalesced";
    case OpType::_ALLREDUCE_SPARSE: return "all_reduce_sparse";
    default: return "unknown";
  }
}

const char* reduce_op_name(ReduceOp::RedOpType op) {
  switch (op) {
    case ReduceOp::SUM: return "sum";
    case ReduceOp::AVG: return "avg";
    case ReduceOp::PRODUCT: return "product";
    case ReduceOp::MIN: return "min";
    case ReduceOp::MAX: return "max";
    case ReduceOp::BAND: return "bitwise and";
    case ReduceOp::BOR: return "bitwise or";
    case ReduceOp::BXOR: return "bitwise xor";
    case ReduceOp::PREMUL_SUM: return "premultiplied sum";
    default: return "";
  }
}

void CollectiveFingerprint::add(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  dtypes.push_back(tensor.scalar_type());
  dims.push_back(tensor.dim());
  sizes.append(tensor.sizes().begin(), tensor.sizes().end());
}

std::optional<std::string> CollectiveFingerprint::difference(
    const CollectiveFingerprint& other) const {
  if (op != other.op)
    return absl::StrCat("operation ", op_name(op), " against ", op_name(other.op));
  if (root != other.root) return absl::StrCat("root ", root, " against ", other.root);
  if (reduce_op != other.reduce_op) {
    return absl::StrCat("reduce op ", reduce_op_name(reduce_op), " against ",
                        reduce_op_name(other.reduce_op));
  }
  if (purpose != other.purpose) {
    const auto text = [](const CollectiveFingerprint& call) {
      return call.purpose.empty() ? call.to_string() : call.purpose;
    };
    return absl::StrCat(text(*this), " against ", text(other));
  }
  const bool same_dtypes = dtypes == other.dtypes;
  const bool same_shapes = shapes_may_differ || (dims == other.dims && sizes == other.sizes);
  if (same_dtypes && same_shapes) {
    if (sequence == other.sequence) return std::nullopt;
    return absl::StrCat("call #", sequence, " against #", other.sequence);
  }
  const char* what = dtypes.size() != other.dtypes.size() ? "tensors "
                     : same_dtypes                        ? "shape "
                                                          : "dtype ";
  return absl::StrCat(what, tensors_to_string(*this), " against ", tensors_to_string(other));
}

uint64_t CollectiveFingerprint::hash() const {
  // FNV-1a over whole words. All ranks compute it alike, whatever machine they run on.
  uint64_t hash = 0xcbf29ce484222325;
  auto mix = [&hash](uint64_t word) {
    hash = (hash ^ word) * 0x100000001b3;
    hash ^= hash >> 32;
  };
  mix(static_cast<uint64_t>(op));
  mix(static_cast<uint64_t>(reduce_op));
  mix(static_cast<uint64_t>(root));
  mix(sequence);
  for (const char each : purpose) mix(static_cast<unsigned char>(each));
  mix(dtypes.size());
  for (const at::ScalarType dtype : dtypes) mix(static_cast<uint64_t>(dtype));
  if (shapes_may_differ) return hash;
  for (const int64_t count : dims) mix(static_cast<uint64_t>(count));
  for (int64_t size : sizes) mix(static_cast<uint64_t>(size));
  return hash;
}

std::string CollectiveFingerprint::to_string() const {
  std::vector<std::string> details;
  if (reduce_op != ReduceOp::UNUSED) details.push_back(reduce_op_name(reduce_op));
  if (root >= 0) details.push_back(absl::StrCat("root ", root));
  if (!dtypes.empty()) details.push_back(tensors_to_string(*this));
  if (!purpose.empty()) details.push_back(purpose);
  const bool point_to_point = c10d::isP2POp(op);
  std::string text = op_name(op);
  if (point_to_point) {
    if (peer >= 0) absl::StrAppend(&text, op == OpType::SEND ? " to " : " from ", peer);
    absl::StrAppend(&text, ", tag ", tag);
  } else {
    absl::StrAppend(&text, " #", sequence);
  }
  if (!details.empty()) absl::StrAppend(&text, " (", absl::StrJoin(details, ", "), ")");
  return text;
}

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
  fingerprint.purpose = CollectivePurpose::current();
  if (const at::Tensor* const carried = CarriedValues::current()) {
    fingerprint.add(*carried);
  } else {
    for (const at::Tensor& tensor : share()) fingerprint.add(tensor);
  }
  return fingerprint;
}

OpType check_call(const CollectiveCall& call, int rank, int size) {
  OpType op = call.op;
  const Tensors& share = call.share();
  if (op == OpType::ALLREDUCE && share.size() == 1 && share[0].is_sparse()) {
    op = OpType::_ALLREDUCE_SPARSE;
  }
  const char* which = &share == call.outputs.data() ? "output" : "input";
  switch (op) {
    case OpType::BARRIER: return op;
    case OpType::_ALLREDUCE_SPARSE: check_sparse_sum(share, *call.reduce_op); break;
    case OpType::ALLREDUCE_COALESCED:
      TORCH_CHECK_VALUE(!share.empty(), "all_reduce_coalesced: no tensors");
      [[fallthrough]];
    case OpType::ALLGATHER_COALESCED:
    case OpType::_ALLGATHER_BASE: check_count(share, share.size(), op, which); break;
    case OpType::_REDUCE_SCATTER_BASE:
      check_count(call.inputs[0], call.inputs[0].size(), op, "input");
      check_count(share, call.inputs[0].size(), op, which);
      break;
    case OpType::ALLTOALL: check_count(share, size, op, which); break;
    default: check_count(share, 1, op, which); break;
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

}  // namespace accelerate
