#include "accelerate/parallel/sequence/sequence_order.h"

#include <ATen/ops/cat.h>

namespace accelerate {

at::Tensor part_of_sequence(const at::Tensor& whole, int64_t dim, const SequencePlace& place) {
  const int64_t length = whole.size(dim) / place.parts();
  const auto part = [&](int64_t number) { return whole.narrow(dim, number * length, length); };
  if (place.parts() == place.ranks) {
    return part(place.rank).clone(at::MemoryFormat::Contiguous);
  }
  return at::cat({part(place.rank), part(place.parts() - 1 - place.rank)}, dim);
}

}  // namespace accelerate
