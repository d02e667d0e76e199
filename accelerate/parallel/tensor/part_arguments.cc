#include "accelerate/parallel/tensor/part_arguments.h"

#include <ATen/core/ivalue.h>

#include "accelerate/operators/call_arguments.h"

namespace accelerate {

std::shared_ptr<const LayerParameter> maker_of(const OperatorCall& call, const TensorMark& part) {
  std::shared_ptr<const LayerParameter> maker = part.parameter;
  if (maker == nullptr || maker->copies == 1) return maker;
  for_each_tensor(arguments_of(call), [&](const at::Tensor& each) {
    const TensorMark* const mark = find_part(each);
    if (mark == nullptr || mark->parameter == nullptr) return;
    if (mark->parameter->copies < maker->copies) maker = mark->parameter;
  });
  return maker;
}

int64_t joined_pieces(const OperatorCall& call, const at::Tensor& tensor, const TensorMark& part) {
  const int from_end = part.from_end;
  const auto length = [from_end](const at::Tensor& each, const TensorMark& mark) {
    return mark.pieces >= 1 ? each.size(-from_end) / mark.pieces : 0;
  };
  int64_t pieces = 0;
  bool are_even = true, are_known = true;
  for_each_tensor(arguments_of(call), [&](const at::Tensor& each) {
    const TensorMark* const mark = find_part(each);
    if (mark == nullptr) return;
    are_known &= mark->pieces != TensorMark::kUnknownPieces && mark->from_end == from_end;
    are_even &= length(each, *mark) == length(tensor, part) && mark->pieces >= 1;
    pieces += mark->pieces;
  });
  if (!are_known) return TensorMark::kUnknownPieces;
  return are_even ? pieces : TensorMark::kUnevenPieces;
}

}  // namespace accelerate
