/// The positions of chips in a torus and the routes between them. A message travels along one axis
/// after the other, in the order of the axes, in the shorter direction; ties go up.
///
/// Ranks count the last axis fastest. An axis of two chips is one link; an axis of one chip has
/// none. Longer axes are rings, or lines if their ends are not joined: a line is half of a ring
/// that is twice as long, so that no shorter way leads around it. Threads: const methods only.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "simulator/hardware/cluster_spec.h"

namespace accelerate::simulator::internal {

class Torus {
 public:
  /// All axes are rings.
  explicit Torus(std::vector<int> axes);
  /// `circumferences`: those of the rings that the axes are, or are half of.
  Torus(std::vector<int> axes, std::vector<int> circumferences);

  int num_axes() const { return static_cast<int>(axes_.size()); }
  int axis(int index) const { return axes_[index]; }
  /// The chips of the ring that the axis is, or is half of.
  int circumference(int index) const { return circumferences_[index]; }
  int coordinate(int rank, int axis) const { return rank / strides_[axis] % axes_[axis]; }

  /// Links are numbered by the chip that they leave, the axis, and whether they go down.
  int num_links() const { return num_chips_ * 2 * num_axes(); }
  std::vector<int> route(int source, int target) const;

  /// The number of links between two coordinates of an axis, in the shorter direction.
  int distance(int axis, int from, int to) const;

 private:
  std::vector<int> axes_;
  std::vector<int> circumferences_;
  std::vector<int> strides_;
  int num_chips_ = 1;
};

/// The torus of a cluster of TPUs. Joined are axes of 16 chips in two dimensions (TPU v5e), and all
/// axes of whole cubes of 4x4x4 in three (v4, v5p), whose ends meet in optical switches.
/// Mirrors: Jouppi et al., "TPU v4" (ISCA 2023); "How to Scale Your Model", chapter 2.
Torus torus_of(const ClusterSpec& spec);

/// The members of a group along one axis of a torus, as a ring in the order of coordinates.
struct TorusAxis {
  int members = 1;
  /// The most links that s-1 consecutive steps of the ring cross.
  int links_of_steps = 0;
  /// Rings that run at full bandwidth: two, one in each direction, if the ring closes without
  /// turning back; one on a single link, on a line or on a part of the axis.
  int rings = 1;
  /// The number of links between the two members that are farthest apart.
  int farthest = 0;
  /// The number of messages over the busiest link when each member sends one to each other member.
  double all_to_all_load = 0;
  /// The number of other members that the first member reaches over its busier link.
  int busier_side = 0;
};

/// `coordinates` are ascending, without repeats, on a ring of `length` chips.
TorusAxis analyse_axis(int length, absl::Span<const int> coordinates);

/// The axes of the box that `ranks` fill, one entry for each axis of the torus; empty if they do
/// not fill a box. A box is the product of a set of coordinates for each axis.
std::vector<TorusAxis> analyse_box(const Torus& torus, absl::Span<const int> ranks);

/// The ring through `ranks` in order, over the torus's routes.
struct TorusRing {
  /// The most links that n-1 consecutive steps cross.
  int links_of_steps = 0;
  /// The bandwidth at the ring's bottleneck, as a multiple of a link's bandwidth: two if rings in
  /// both directions have no link in common.
  double bandwidth = 1;
};
TorusRing analyse_ring(const Torus& torus, absl::Span<const int> ranks);

}  // namespace accelerate::simulator::internal
