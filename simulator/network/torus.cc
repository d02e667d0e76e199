#include "simulator/network/torus.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/log/absl_check.h"
#include "simulator/hardware/presets.h"

namespace accelerate::simulator::internal {
namespace {

// For messages from each member of an axis to each other member: the links that the longest message
// crosses, and the number of messages over the busiest link. The members are points on a circle;
// each sends to the members up to half a turn ahead. The other direction never has more messages,
// because ties go up. Two turns of the points make every window of a turn contiguous.
void analyse_all_to_all(int length, absl::Span<const int> coordinates, TorusAxis& axis) {
  const int64_t members = static_cast<int64_t>(coordinates.size());
  const auto position = [&](int64_t i) {
    return coordinates[i % members] + (i / members) * static_cast<int64_t>(length);
  };
  // reach[i]: the farthest index that member i sends up to.
  std::vector<int64_t> reach(2 * members);
  int64_t last = 0;
  for (int64_t i = 0; i < 2 * members; ++i) {
    last = std::max(last, i);
    while (last + 1 < i + members && 2 * (position(last + 1) - position(i)) <= length) ++last;
    reach[i] = last;
    axis.farthest = std::max(axis.farthest, static_cast<int>(position(last) - position(i)));
  }
  // The gap after point p carries the messages from every i <= p to every j in (p, reach[i]].
  int64_t busiest = 0;
  int64_t oldest = 0;
  int64_t sum_of_reaches = 0;
  for (int64_t p = 0; p < 2 * members; ++p) {
    sum_of_reaches += reach[p];
    while (oldest <= p && reach[oldest] <= p) sum_of_reaches -= reach[oldest++];
    busiest = std::max(busiest, sum_of_reaches - (p - oldest + 1) * p);
  }
  axis.all_to_all_load = static_cast<double>(busiest);
}

}  // namespace

Torus::Torus(std::vector<int> axes) : Torus(axes, axes) {}

Torus::Torus(std::vector<int> axes, std::vector<int> circumferences)
    : axes_(std::move(axes)), circumferences_(std::move(circumferences)), strides_(axes_.size()) {
  for (int axis = num_axes() - 1; axis >= 0; --axis) {
    strides_[axis] = num_chips_;
    num_chips_ *= axes_[axis];
  }
}

Torus torus_of(const ClusterSpec& spec) {
  constexpr int kCube = 4;
  constexpr int kJoined = 16;
  const Preset* preset = find_preset(spec.device->name);
  const bool has_cubes = preset == nullptr || preset->torus_axes == 3;
  const bool is_of_cubes = spec.torus.size() == 3 && absl::c_all_of(spec.torus, [](int length) {
                             return length % kCube == 0;
                           });
  std::vector<int> circumferences = spec.torus;
  for (int& length : circumferences) {
    if (!(has_cubes ? is_of_cubes : length % kJoined == 0)) length *= 2;
  }
  return Torus(spec.torus, std::move(circumferences));
}

int Torus::distance(int axis, int from, int to) const {
  const int length = circumferences_[axis];
  const int up = (to - from + length) % length;
  return std::min(up, length - up);
}

std::vector<int> Torus::route(int source, int target) const {
  std::vector<int> links;
  int chip = source;
  for (int axis = 0; axis < num_axes(); ++axis) {
    const int length = circumferences_[axis];
    int at = coordinate(chip, axis);
    const int to = coordinate(target, axis);
    const bool up = 2 * ((to - at + length) % length) <= length;
    while (at != to) {
      links.push_back((chip * num_axes() + axis) * 2 + (up ? 0 : 1));
      const int next = (at + (up ? 1 : length - 1)) % length;
      chip += (next - at) * strides_[axis];
      at = next;
    }
  }
  return links;
}

TorusAxis analyse_axis(int length, absl::Span<const int> coordinates) {
  const int members = static_cast<int>(coordinates.size());
  ABSL_CHECK_GT(members, 0);
  TorusAxis axis{.members = members};
  if (members == 1) return axis;
  int all = 0;
  int shortest = length;
  int longest_up = 0;
  for (int i = 0; i < members; ++i) {
    const int up = (coordinates[(i + 1) % members] - coordinates[i] + length) % length;
    const int hop = std::min(up, length - up);
    all += hop;
    shortest = std::min(shortest, hop);
    longest_up = std::max(longest_up, up);
    if (i > 0) {
      const int from_first = coordinates[i] - coordinates[0];
      axis.busier_side += 2 * from_first <= length ? 1 : 0;
    }
  }
  axis.busier_side = std::max(axis.busier_side, members - 1 - axis.busier_side);
  axis.links_of_steps = all - shortest;
  axis.rings = length > 2 && 2 * longest_up <= length ? 2 : 1;
  analyse_all_to_all(length, coordinates, axis);
  return axis;
}

std::vector<TorusAxis> analyse_box(const Torus& torus, absl::Span<const int> ranks) {
  std::vector<TorusAxis> axes;
  int64_t size = 1;
  for (int axis = 0; axis < torus.num_axes(); ++axis) {
    std::vector<bool> present(torus.axis(axis));
    for (int rank : ranks) present[torus.coordinate(rank, axis)] = true;
    std::vector<int> coordinates;
    for (int at = 0; at < torus.axis(axis); ++at) {
      if (present[at]) coordinates.push_back(at);
    }
    size *= static_cast<int64_t>(coordinates.size());
    axes.push_back(analyse_axis(torus.circumference(axis), coordinates));
  }
  // Every rank is in the product of the sets, and no rank occurs twice.
  if (size != static_cast<int64_t>(ranks.size())) return {};
  return axes;
}

TorusRing analyse_ring(const Torus& torus, absl::Span<const int> ranks) {
  std::vector<int> one_way(torus.num_links());
  std::vector<int> both_ways(torus.num_links());
  int all = 0;
  int shortest = torus.num_links();
  const size_t members = ranks.size();
  for (size_t i = 0; i < members; ++i) {
    const int from = ranks[i];
    const int to = ranks[(i + 1) % members];
    const std::vector<int> hop = torus.route(from, to);
    for (int link : hop) {
      ++one_way[link];
      ++both_ways[link];
    }
    for (int link : torus.route(to, from)) ++both_ways[link];
    all += static_cast<int>(hop.size());
    shortest = std::min(shortest, static_cast<int>(hop.size()));
  }
  const int busiest = *std::max_element(one_way.begin(), one_way.end());
  const int busiest_of_both = *std::max_element(both_ways.begin(), both_ways.end());
  return {.links_of_steps = all - shortest,
          .bandwidth = std::max(1.0 / busiest, 2.0 / busiest_of_both)};
}

}  // namespace accelerate::simulator::internal
