/// What the marks of an operator's arguments say of its result.
///
/// Threads: values.
#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "accelerate/operators/operator_mode.h"
#include "accelerate/parallel/tensor/tensor_mark.h"

namespace accelerate {

/// Whose part the result is: that of `part`, one of the arguments' marks, unless neighbours have it
/// alike and not another argument. Keys that neighbours share make scores of their own with each of
/// their queries.
std::shared_ptr<const LayerParameter> maker_of(const OperatorCall& call, const TensorMark& part);

/// The pieces (TensorMark::pieces) of parts that an operator puts together along their dim, one of
/// which is `tensor` with the mark `part`.
int64_t joined_pieces(const OperatorCall& call, const at::Tensor& tensor, const TensorMark& part);

}  // namespace accelerate
