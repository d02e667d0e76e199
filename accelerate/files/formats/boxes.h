/// Boxes: rectangular parts of tensors, and where their bytes are in memory or a file that has the
/// whole tensor row by row.
///
/// Needs no LibTorch. Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace accelerate {

/// The box's first index and its length, per dim. A box without dims is the one element of a
/// tensor without dims.
struct Box {
  std::vector<int64_t> offsets;
  std::vector<int64_t> lengths;

  int64_t numel() const;
  bool operator==(const Box&) const = default;
};

/// All of a tensor.
Box whole_box(const std::vector<int64_t>& shape);

/// The rows first..first+count-1 of a tensor. \pre It has dims.
Box row_box(const std::vector<int64_t>& shape, int64_t first, int64_t count);

/// What two boxes of one tensor have in common; a box without elements if that is nothing.
Box intersection(const Box& a, const Box& b);

/// `inner` as a box of the tensor that consists of `outer` alone. \pre `outer` contains it.
Box inside(const Box& outer, const Box& inner);

/// A box with elements of `whole` that none of the boxes has; absent where they cover it. \pre The
/// boxes are of one tensor, and no two have an element in common.
std::optional<Box> find_hole(const Box& whole, const std::vector<Box>& boxes);

/// "[0:64, 0:128]", with each dim's first index and the one behind the last.
std::string box_text(const Box& box);

/// The bytes of a box in its tensor, as runs of one length without gaps in them, in the order of
/// the box's elements.
class BoxRuns {
 public:
  /// `item_bytes`: of an element.
  BoxRuns(const std::vector<int64_t>& shape, const Box& box, int64_t item_bytes);

  int64_t bytes() const { return bytes_; }
  int64_t count() const { return count_; }
  /// Where a run begins.
  int64_t offset(int64_t run) const;

 private:
  int64_t bytes_ = 0;
  int64_t count_ = 0;
  int64_t first_ = 0;
  std::vector<int64_t> counts_;   // of the dims that make separate runs
  std::vector<int64_t> strides_;  // in bytes
};

}  // namespace accelerate
