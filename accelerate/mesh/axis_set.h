/// A set of a mesh's axes.
///
///   const AxisSet model = {MeshAxis::kPp, MeshAxis::kTp};
///   AxisSet::all() - model   // along which ranks have the same part of a model
///
/// dp_shard, cp and sp have two pieces each, of which a set may have one: the inner piece is of ep,
/// the outer one of edp. Which ranks stand along a piece is the mesh's (mesh.h).
///
/// Threads: values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/enum_text.h"
#include "accelerate/base/mesh_axis.h"
#include "accelerate/config/parallelism_config.h"

namespace accelerate {

class AxisSet {
 public:
  AxisSet() = default;
  /// A joined axis stands for the axes that it joins.
  AxisSet(std::initializer_list<MeshAxis> axes) {
    for (const MeshAxis axis : axes) bits_ |= bits_of(axis);
  }
  /// Every axis that divides the ranks.
  static AxisSet all() {
    return {MeshAxis::kPp, MeshAxis::kDp, MeshAxis::kCp, MeshAxis::kSp, MeshAxis::kTp};
  }

  bool empty() const { return bits_ == 0; }
  /// Whether the axis is among them; of a joined one, whether all are that it joins.
  bool contains(MeshAxis axis) const { return (bits_of(axis) & ~bits_) == 0; }
  /// The axes that divide the ranks, outermost first but for pp, which may stand elsewhere; edp and
  /// ep, each once, where an axis is not among them but one of its pieces is.
  std::vector<MeshAxis> axes() const {
    std::vector<MeshAxis> axes;
    for (size_t i = 0; i < kNumPlainAxes; ++i) {
      const auto axis = static_cast<MeshAxis>(i);
      if (contains(axis)) {
        axes.push_back(axis);
        continue;
      }
      for (const MeshAxis view : {MeshAxis::kEdp, MeshAxis::kEp}) {
        const bool has_piece = !(*this & AxisSet{axis} & AxisSet{view}).empty();
        if (has_piece && std::ranges::count(axes, view) == 0) axes.push_back(view);
      }
    }
    return axes;
  }
  /// "dp_shard and tp"; "no axis".
  std::string to_string() const {
    if (empty()) return "no axis";
    return absl::StrJoin(axes(), " and ", [](std::string* text, MeshAxis axis) {
      absl::StrAppend(text, accelerate::to_string(axis));
    });
  }

  friend AxisSet operator|(AxisSet a, AxisSet b) { return AxisSet(a.bits_ | b.bits_); }
  friend AxisSet operator&(AxisSet a, AxisSet b) { return AxisSet(a.bits_ & b.bits_); }
  /// Those of `a` that are not in `b`.
  friend AxisSet operator-(AxisSet a, AxisSet b) { return AxisSet(a.bits_ & ~b.bits_); }
  AxisSet& operator|=(AxisSet other) { return *this = *this | other; }
  bool operator==(const AxisSet&) const = default;

 private:
  explicit AxisSet(uint32_t bits) : bits_(bits) {}
  static constexpr uint32_t bit_of(MeshAxis axis) { return 1U << static_cast<uint32_t>(axis); }
  static uint32_t bits_of(MeshAxis axis) {
    constexpr uint32_t kInPieces =
        bit_of(MeshAxis::kDpShard) | bit_of(MeshAxis::kCp) | bit_of(MeshAxis::kSp);
    if (axis == MeshAxis::kEdp) return kInPieces;
    if (axis == MeshAxis::kEp) return kInPieces << kNumPlainAxes;
    uint32_t bits = 0;
    for (const MeshAxis part : parts_of(axis)) bits |= bit_of(part);
    return bits | ((bits & kInPieces) << kNumPlainAxes);
  }

  uint32_t bits_ = 0;  // by MeshAxis; the inner pieces behind them
};

}  // namespace accelerate
