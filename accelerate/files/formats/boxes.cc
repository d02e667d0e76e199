#include "accelerate/files/formats/boxes.h"

#include <algorithm>
#include <cstddef>

namespace accelerate {

int64_t Box::numel() const {
  int64_t numel = 1;
  for (const int64_t length : lengths) numel *= length;
  return numel;
}

Box whole_box(const std::vector<int64_t>& shape) {
  return {.offsets = std::vector<int64_t>(shape.size(), 0), .lengths = shape};
}

Box row_box(const std::vector<int64_t>& shape, int64_t first, int64_t count) {
  Box box = whole_box(shape);
  box.offsets.at(0) = first;
  box.lengths.at(0) = count;
  return box;
}

Box intersection(const Box& a, const Box& b) {
  Box common;
  for (size_t dim = 0; dim < a.offsets.size(); ++dim) {
    const int64_t begin = std::max(a.offsets[dim], b.offsets[dim]);
    const int64_t end = std::min(a.offsets[dim] + a.lengths[dim], b.offsets[dim] + b.lengths[dim]);
    common.offsets.push_back(begin);
    common.lengths.push_back(std::max<int64_t>(end - begin, 0));
  }
  return common;
}

Box inside(const Box& outer, const Box& inner) {
  Box box = inner;
  for (size_t dim = 0; dim < box.offsets.size(); ++dim) box.offsets[dim] -= outer.offsets[dim];
  return box;
}

BoxRuns::BoxRuns(const std::vector<int64_t>& shape, const Box& box, int64_t item_bytes) {
  const size_t dims = shape.size();
  std::vector<int64_t> strides(dims);
  int64_t stride = item_bytes;
  for (size_t dim = dims; dim-- > 0;) {
    strides[dim] = stride;
    first_ += box.offsets[dim] * stride;
    stride *= shape[dim];
  }
  bytes_ = item_bytes;
  // Trailing dims that the box has whole, and the one before them, are together.
  size_t split = dims;
  while (split > 0) {
    --split;
    bytes_ *= box.lengths[split];
    if (box.lengths[split] != shape[split]) break;
  }
  count_ = bytes_ == 0 ? 0 : 1;
  for (size_t dim = 0; dim < split; ++dim) {
    counts_.push_back(box.lengths[dim]);
    strides_.push_back(strides[dim]);
    count_ *= box.lengths[dim];
  }
}

int64_t BoxRuns::offset(int64_t run) const {
  int64_t offset = first_;
  for (size_t dim = counts_.size(); dim-- > 0;) {
    offset += run % counts_[dim] * strides_[dim];
    run /= counts_[dim];
  }
  return offset;
}

}  // namespace accelerate
