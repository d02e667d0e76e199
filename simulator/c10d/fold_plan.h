/// Which ranks of a cluster are executed and which are folded, for replicas and along the axes of a
/// mesh.
///
/// The program says which ranks do the same: all of them, or those that differ along some axes of
/// its mesh only. Ranks that do the same need not do it at the same time: one group of the mesh is
/// inside a node and another is not, messages share links, a fault holds up the neighbours of one
/// rank. Classes are therefore refined until they are stable: two ranks are in one class only if
/// their groups along every axis take the same time on the network and have members of the same
/// classes, and if their messages cross links with the same bandwidths and the same load.
///
/// Executed are the lowest rank of each class, and what the groups of executed ranks need: the
/// lowest member of each class that the group has. The first member of a group, which others
/// broadcast from, is therefore executed. This holds for groups along several axes as well
/// (DeviceMesh::group of a set of axes), as stable classes along each axis make the classes of
/// these groups' members the same. Threads: any, as the object does not change.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "accelerate/mesh/mesh.h"
#include "simulator/core/executed_ranks.h"
#include "simulator/hardware/cluster_spec.h"

namespace accelerate::simulator {

/// Runs one rank of each set of ranks that do the same, and counts it for the others.
///
/// Without a mesh all ranks are taken for replicas that do the same as rank 0. With one, ranks do
/// the same that differ along the folded axes only; the stages of a pipeline do not. The folded
/// ranks take part in collectives at the same time and with the same values as the rank that they
/// count as. Messages pass between ranks that differ along one axis that is not folded, and those
/// of folded ranks load the network as well. Programs of folded ranks do not run: they write no
/// files, print nothing and report nothing of their own. A disk works for their files as long as
/// for those of the ranks of that disk that they count as; how long after each other ranks ask, and
/// so which file comes first, is not simulated.
///
/// Exact are collectives of the world and of the mesh's groups along an axis (DeviceMesh). Those of
/// other groups, of a cut model along several axes among them, are taken to last as long in each
/// class of ranks; what the folded groups along several axes send counts in the traffic.
struct Folding {
  /// So many folded ranks, drawn from the seed, are executed all the same, with what their groups
  /// need. What ranks of one class ask of their devices and of groups is compared; a difference is
  /// an error that names the operation.
  int spot_checks = 1;
  /// Executes rank 0 and counts it for no other, because a main process does more than the others:
  /// it initialises sharded models, saves and logs. Its neighbours are then told apart as well.
  bool rank_0_apart = false;
  /// Allows Numerics::kReal, for tests: a folded rank then has its representative's data.
  bool with_real_numerics = false;
  /// How the program arranges its ranks.
  std::optional<Mesh> mesh = std::nullopt;
  /// The axes along which ranks of the mesh do the same; empty: all but pp.
  std::vector<MeshAxis> along = {};
};

class FoldPlan {
 public:
  /// Every rank is executed.
  explicit FoldPlan(int world_size) : executed_(world_size) {}

  /// `touched` are the ranks that a fault touches: they are executed and count for no other.
  /// Errors: c10::ValueError if the mesh is for another number of ranks, axes are named without a
  ///         mesh, or the number of spot checks is negative.
  FoldPlan(const ClusterSpec& spec, const Folding& folding, const std::vector<int>& touched,
           uint64_t seed);

  const ExecutedRanks& executed() const { return executed_; }

  /// Whether a message between the two ranks can be simulated: both are executed, and no rank is
  /// folded or they differ along one axis that is not folded.
  bool allows_message(int source, int target) const;
  /// The messages of folded ranks that count as this one, as pairs of sender and receiver.
  std::vector<std::pair<int, int>> copies_of_message(int source, int target) const;
  /// The groups of folded ranks that count as this group, if it is one of the mesh, along one axis
  /// or several at once.
  std::vector<std::vector<int>> copies_of_group(const std::vector<int>& ranks) const;

 private:
  ExecutedRanks executed_;
  std::optional<Mesh> mesh_;
  std::vector<MeshAxis> apart_;               // plain axes with several ranks that are not folded
  std::vector<std::vector<int>> counts_for_;  // by rank: the folded ranks that count as it
};

}  // namespace accelerate::simulator
