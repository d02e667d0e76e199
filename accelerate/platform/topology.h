/// Where a rank stands in its job: how many ranks there are, on how many nodes, which one it is,
/// and where their rendezvous is. Each launcher says so in variables of its own.
///
/// Units: counts and zero-based indices. Values; they never change during a run.
/// Mirrors: PartialState's reading of the environment; get_cpu_distributed_information (here
///          topology_from_environment) and CPUInformation (here Topology); the torchrun contract.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "accelerate/platform/environment.h"

namespace accelerate {

struct Topology {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  int num_nodes = 1;
  /// The launcher whose variables count the ranks: "torchrun" (or any launcher that keeps its
  /// contract), "Open MPI", "MPICH/PMI", "Intel MPI", "MVAPICH2", "SLURM", or "plain" for a program
  /// that was not launched.
  std::string source = "plain";

  /// `NODESxRANKS`, as in "2x4"; the bare number of ranks where nodes differ in size.
  std::string shape() const;

  /// The topology of rank `rank` of `num_nodes` equal nodes, filled node by node, as
  /// export_topology() and topology_from_environment() hand it on.
  static Topology uniform(int rank, int num_nodes, int ranks_per_node);

  bool operator==(const Topology&) const = default;
};

/// A rank's place among the others, and the address of their rendezvous.
struct Placement {
  Topology topology;
  /// Host and port of the rendezvous store; empty and 0 for a rank alone.
  std::string master_addr;
  uint16_t master_port = 0;
  /// A warning for the user, without a newline; mostly empty.
  std::string notice;
};

/// Reads the variables of torchrun, PMI (MPICH, Intel MPI), Open MPI, MVAPICH2, PMIx and Slurm, in
/// this order: of each quantity the first that is set. Numbers below 0 count as not set; nothing
/// set means one rank alone. Variables that speak of the processes that a launcher was started in,
/// as under `srun torchrun`, are passed over. Local.
/// MASTER_ADDR defaults to this machine where it is known to run all ranks, and to the first host
/// of a Slurm step; MASTER_PORT to 29500, and to a number made from the job's under Slurm.
/// Errors: InvalidArgument naming every variable involved: text that is not a number, an index
///         outside its count, a rank without a number of ranks, launchers that contradict one
///         another, a missing or malformed address.
absl::StatusOr<Placement> placement_from_environment(const Environment& environment);

/// The placement's topology alone; says nothing of a missing address.
absl::StatusOr<Topology> topology_from_environment(const Environment& environment);

/// Writes `topology` into RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and GROUP_RANK.
void export_topology(const Topology& topology, Environment& environment);

/// The same, and MASTER_ADDR and MASTER_PORT if there is a rendezvous.
void export_placement(const Placement& placement, Environment& environment);

}  // namespace accelerate
