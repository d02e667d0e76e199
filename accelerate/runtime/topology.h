/// Where a rank stands in its job: how many ranks there are, on how many nodes, and which one it
/// is.
///
/// Units: counts and zero-based indices. A value; it never changes during a run.
/// Mirrors: the torchrun contract (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK).
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "accelerate/runtime/environment.h"

namespace accelerate {

struct Topology {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  int num_nodes = 1;

  /// `NODESxRANKS`, as in "2x4"; the bare number of ranks where nodes differ in size.
  std::string shape() const;

  /// The topology of rank `rank` of `num_nodes` equal nodes, filled node by node.
  static Topology uniform(int rank, int num_nodes, int ranks_per_node);
};

/// Reads the torchrun contract. Nothing set means one rank alone.
/// Errors: InvalidArgument naming every variable involved, for text that is no number, an index
///         outside its count, or one of RANK and WORLD_SIZE without the other.
absl::StatusOr<Topology> topology_from_environment(const Environment& environment);

/// Writes `topology` into the variables that topology_from_environment() reads.
void export_topology(const Topology& topology, Environment& environment);

}  // namespace accelerate
