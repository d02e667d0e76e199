#include "accelerate/comm/backends/own_operations.h"

#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <c10/util/Exception.h>

namespace accelerate::internal {

using c10d::ReduceOp;

void accumulate(at::Tensor& total, const at::Tensor& value, ReduceOp::RedOpType op) {
  switch (op) {
    case ReduceOp::SUM:
    case ReduceOp::AVG: total.add_(value); return;
    case ReduceOp::PRODUCT: total.mul_(value); return;
    case ReduceOp::MIN: at::minimum_out(total, total, value); return;
    case ReduceOp::MAX: at::maximum_out(total, total, value); return;
    case ReduceOp::BAND: total.bitwise_and_(value); return;
    case ReduceOp::BOR: total.bitwise_or_(value); return;
    case ReduceOp::BXOR: total.bitwise_xor_(value); return;
    case ReduceOp::PREMUL_SUM:
    case ReduceOp::UNUSED: break;
  }
  TORCH_INTERNAL_ASSERT(false, "unchecked reduce op");
}

void average(at::Tensor& sum, int64_t count) {
  if (at::isIntegralType(sum.scalar_type(), /*includeBool=*/false)) {
    sum.div_(count, "trunc");
  } else {
    sum.div_(count);
  }
}

}  // namespace accelerate::internal
