#include "accelerate/files/formats/boxes.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace accelerate {
namespace {

// `box` without the elements of `taken`, which is a part of it, as boxes.
std::vector<Box> without(Box box, const Box& taken) {
  std::vector<Box> rest;
  for (size_t dim = 0; dim < box.offsets.size(); ++dim) {
    int64_t &first = box.offsets[dim], &length = box.lengths[dim];
    const int64_t before = taken.offsets[dim] - first;
    const int64_t after = length - before - taken.lengths[dim];
    if (before > 0) {
      Box& part = rest.emplace_back(box);
      part.lengths[dim] = before;
    }
    if (after > 0) {
      Box& part = rest.emplace_back(box);
      part.offsets[dim] += length - after;
      part.lengths[dim] = after;
    }
    first = taken.offsets[dim];
    length = taken.lengths[dim];
  }
  return rest;
}

}  // namespace

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

std::optional<Box> find_hole(const Box& whole, const std::vector<Box>& boxes) {
  // Parts of `whole`, and with how many of the first boxes each has nothing in common.
  std::vector<std::pair<Box, size_t>> open;
  if (whole.numel() > 0) open.emplace_back(whole, 0);
  while (!open.empty()) {
    auto [part, next] = std::move(open.back());
    open.pop_back();
    while (next < boxes.size() && intersection(part, boxes[next]).numel() == 0) ++next;
    if (next == boxes.size()) return part;
    const Box common = intersection(part, boxes[next]);
    for (Box& rest : without(std::move(part), common)) open.emplace_back(std::move(rest), next + 1);
  }
  return std::nullopt;
}

std::string box_text(const Box& box) {
  std::vector<std::string> dims;
  for (size_t i = 0; i < box.offsets.size(); ++i) {
    dims.push_back(absl::StrCat(box.offsets[i], ":", box.offsets[i] + box.lengths[i]));
  }
  return absl::StrCat("[", absl::StrJoin(dims, ", "), "]");
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
