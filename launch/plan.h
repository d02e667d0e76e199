/// From options to what each process gets: command, environment, descriptors.
///
/// Second step of the launcher, and a pure one: it starts nothing and asks the machine nothing, so
/// a plan can be printed and compared as text. The variables are those of
/// `accelerate/runtime/env.h`; this file is the only place in the launcher that writes them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace accelerate::launch {

/// Changes to an inherited environment; a name without a value is removed from it.
using EnvironmentOverlay = std::map<std::string, std::optional<std::string>>;

/// One process to start.
struct ProcessPlan {
  std::vector<std::string> argv;
  EnvironmentOverlay environment;
  /// Descriptors of the launcher that this process keeps, under the same numbers. Standard input,
  /// output and error are not listed.
  std::vector<int> inherited_fds;
};

/// Ranks on this machine alone.
struct LocalRun {
  int num_processes = 1;
  /// The program as typed, then its arguments, untouched.
  std::vector<std::string> command;
  /// What every rank gets besides the variables that say which one it is.
  EnvironmentOverlay environment;
};

/// A simulated cluster in one process.
struct SimulatedRun {
  /// Topology, never empty. The program, not the launcher, understands it.
  std::string simulate;
  /// Scheduler seed. Unset: what the environment says, else the default.
  std::optional<std::string> simulate_seed;
  /// Directory for the report.
  std::optional<std::string> report;
  std::vector<std::string> command;
  EnvironmentOverlay environment;
};

/// The socket that the launcher listens on for rank 0's store.
struct Rendezvous {
  uint16_t port = 0;
  int listen_fd = -1;
};

/// One process per rank, in rank order. Only rank 0 keeps the listening socket. A variable that
/// asks for a simulation is removed, as is a listening socket that was meant for an outer run.
/// `parent_environment` holds `NAME=value` words, as `environ` does.
std::vector<ProcessPlan> plan_ranks(const LocalRun& run,
                                    absl::Span<const std::string> parent_environment,
                                    const Rendezvous& rendezvous);

/// The single process of a simulated run. What an outer run said about its ranks is removed, so
/// that the program does not take itself for one of them.
ProcessPlan plan_simulation(const SimulatedRun& run);

/// Removes what an outer run said about its ranks.
EnvironmentOverlay without_outer_run();

/// The environment that results; of a name that occurs twice in `parent` both are replaced.
std::vector<std::string> apply_overlay(absl::Span<const std::string> parent,
                                       const EnvironmentOverlay& overlay);

/// The plan as lines `argv: …`, `set NAME=value`, `unset NAME`, `keep fd N`, in this order.
std::string to_text(const ProcessPlan& plan);

}  // namespace accelerate::launch
