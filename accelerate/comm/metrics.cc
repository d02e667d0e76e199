#include "accelerate/comm/metrics.h"

namespace accelerate::internal {

at::Tensor gather_real_rows(const ProcessGroupPtr& group, const BatchRound& round,
                            const at::Tensor& tensor) {
  if (!round.ragged) {
    // Real rows come first over all ranks.
    const at::Tensor gathered = gather_tensor(group, tensor);
    if (round.real_rows == BatchRound::kAll || gathered.size(0) <= round.real_rows) return gathered;
    return gathered.narrow(0, 0, round.real_rows);
  }
  const bool fills_up =
      round.own_rows != BatchRound::kAll && tensor.dim() > 0 && tensor.size(0) > round.own_rows;
  return gather_ragged_tensor(group, fills_up ? tensor.narrow(0, 0, round.own_rows) : tensor);
}

}  // namespace accelerate::internal
