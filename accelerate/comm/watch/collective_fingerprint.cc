#include "accelerate/comm/watch/collective_fingerprint.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace accelerate {
namespace {

using c10d::OpType;
using c10d::ReduceOp;

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

}  // namespace accelerate
