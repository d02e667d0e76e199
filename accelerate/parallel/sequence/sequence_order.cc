#include "accelerate/parallel/sequence/sequence_order.h"

#include <cstddef>
#include <vector>

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

at::Tensor whole_sequence(const at::Tensor& parts, int64_t dim, const SequencePlace& place) {
  if (place.parts() == place.ranks) return parts;
  // Ranks have the heads in turn, and then the tails backwards.
  std::vector<at::Tensor> pieces = parts.chunk(place.parts(), dim), in_order;
  for (int rank = 0; rank < place.ranks; ++rank) {
    in_order.push_back(pieces[2 * static_cast<size_t>(rank)]);
  }
  for (int rank = place.ranks - 1; rank >= 0; --rank) {
    in_order.push_back(pieces[2 * static_cast<size_t>(rank) + 1]);
  }
  return at::cat(in_order, dim);
}

}  // namespace accelerate
