#include "accelerate/comm/watch/call_checks.h"

#include <numeric>

#include <c10/util/Exception.h>

#include "accelerate/comm/watch/collective_fingerprint.h"

namespace accelerate {

void check_contiguous(const at::Tensor& tensor, c10d::OpType op) {
  TORCH_CHECK_VALUE(tensor.defined(), op_name(op), ": undefined tensor");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, op_name(op), ": tensors must be dense");
  TORCH_CHECK_VALUE(tensor.is_contiguous(tensor.suggest_memory_format()), op_name(op),
                    ": tensors must be contiguous, got shape ", tensor.sizes(), " with strides ",
                    tensor.strides());
}

void check_count(const std::vector<at::Tensor>& tensors, size_t expected, c10d::OpType op,
                 const char* which) {
  TORCH_CHECK_VALUE(tensors.size() == expected, op_name(op), ": expected ", expected, " ", which,
                    " tensor(s), got ", tensors.size());
  for (const at::Tensor& tensor : tensors) check_contiguous(tensor, op);
}

void check_list_count(size_t got, size_t expected, c10d::OpType op, const char* which) {
  TORCH_CHECK_VALUE(got == expected, op_name(op), ": expected ", expected, " ", which,
                    " list(s), got ", got);
}

void check_alike(const std::vector<at::Tensor>& tensors, const at::Tensor& like, c10d::OpType op,
                 const char* which) {
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_VALUE(tensor.scalar_type() == like.scalar_type() && tensor.numel() == like.numel(),
                      op_name(op), ": ", which, " tensor has ", tensor.numel(), " elements of ",
                      tensor.scalar_type(), ", expected ", like.numel(), " of ",
                      like.scalar_type());
  }
}

void check_whole(const at::Tensor& whole, const at::Tensor& part, int count, c10d::OpType op) {
  TORCH_CHECK_VALUE(whole.is_contiguous() && part.is_contiguous(), op_name(op),
                    ": tensors must be contiguous");
  TORCH_CHECK_VALUE(
      whole.scalar_type() == part.scalar_type() && whole.numel() == part.numel() * count,
      op_name(op), ": the larger tensor has ", whole.numel(), " elements of ", whole.scalar_type(),
      ", expected ", count, " times ", part.numel(), " of ", part.scalar_type());
}

void check_splits(const std::vector<int64_t>& splits, const at::Tensor& tensor, int size,
                  const char* which) {
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

int check_root(int64_t root, int size) {
  TORCH_CHECK_VALUE(root >= 0 && root < size, "rank ", root, " is outside a group of ", size);
  return static_cast<int>(root);
}

void check_reducible(c10d::ReduceOp::RedOpType op, at::ScalarType dtype) {
  using c10d::ReduceOp;
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

}  // namespace accelerate
