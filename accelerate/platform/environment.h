/// The environment variables one rank sees, and the names of those that a launcher sets.
///
/// A rank of a simulated cluster shares its process with other ranks, so variables are an overlay
/// over the process's own environment: `set` and `unset` never touch the process.
/// Threads: an object belongs to one rank; it is not synchronised.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace accelerate {

/// Names of the environment variables that carry a run's shape and mode from a launcher
/// (`launch`, torchrun, mpirun, a test) to the program that it starts.
///
/// This is the whole contract between `launch` and `accelerate`; it needs neither LibTorch nor
/// Abseil. Values are decimal text unless stated. Mirrors: the torchrun environment contract.
namespace env {

// The torchrun contract: one process per rank.
inline constexpr char kRank[] = "RANK";                        ///< global rank, 0-based
inline constexpr char kWorldSize[] = "WORLD_SIZE";             ///< number of ranks
inline constexpr char kLocalRank[] = "LOCAL_RANK";             ///< rank within the node
inline constexpr char kLocalWorldSize[] = "LOCAL_WORLD_SIZE";  ///< ranks on this node
inline constexpr char kGroupRank[] = "GROUP_RANK";             ///< index of the node
inline constexpr char kMasterAddr[] = "MASTER_ADDR";           ///< host of the rendezvous store
inline constexpr char kMasterPort[] = "MASTER_PORT";           ///< port of the rendezvous store
inline constexpr char kOmpNumThreads[] = "OMP_NUM_THREADS";    ///< intra-op threads of a rank

/// An inherited, already listening socket for rank 0's rendezvous store, bound to MASTER_PORT.
/// It closes the race between choosing a free port and using it. Unset: rank 0 binds MASTER_PORT.
inline constexpr char kStoreListenFd[] = "ACCELERATE_STORE_LISTEN_FD";

/// Whether collectives are compared between ranks before they run: a truth value. Default false;
/// simulated ones always are.
inline constexpr char kDebugMode[] = "ACCELERATE_DEBUG_MODE";

/// After how many seconds in an operation one of the real ranks says who holds it up, or
/// which call differs; 0: never. Default 30.
inline constexpr char kWatchSeconds[] = "ACCELERATE_WATCH_SECONDS";
/// The folder in which ranks, real and simulated, write what they did last when the job has failed.
/// Unset: none, or a simulated run's report has it.
inline constexpr char kDumpDir[] = "ACCELERATE_DUMP_DIR";

/// Topology of a simulated cluster, as in "2x4" or "2x4:h100" (simulator/hardware); its presence
/// selects the simulated run mode.
inline constexpr char kSimulate[] = "ACCELERATE_SIMULATE";
/// Scheduler seed of a simulated run, unsigned 64 bits. Default 0.
inline constexpr char kSimulateSeed[] = "ACCELERATE_SIMULATE_SEED";
/// What a simulated run computes: "real", or "shapes" for times and memory without the values of
/// large tensors. Default real.
inline constexpr char kSimulateNumerics[] = "ACCELERATE_SIMULATE_NUMERICS";
/// What the host gets for values that a run of shapes did not compute: "error" or "nan". Default
/// error.
inline constexpr char kSimulateUnknownValues[] = "ACCELERATE_SIMULATE_UNKNOWN_VALUES";
/// Whether a run of shapes executes one rank of each class of ranks that do the same: "true" or
/// "false". Default false.
inline constexpr char kSimulateFold[] = "ACCELERATE_SIMULATE_FOLD";
/// The variables that select and define a simulated run.
inline constexpr std::array kSimulation = {kSimulate, kSimulateSeed, kSimulateNumerics,
                                           kSimulateUnknownValues, kSimulateFold};
/// Directory for a simulated run's report. Unset: none is written.
inline constexpr char kSimulateReport[] = "ACCELERATE_SIMULATE_REPORT";
/// The most slices in the report's trace.json. Default 100000.
inline constexpr char kSimulateReportSlices[] = "ACCELERATE_SIMULATE_REPORT_SLICES";

}  // namespace env

class Environment {
 public:
  /// An overlay over this process's environment.
  Environment() = default;

  /// The variable's value, or nothing where it is unset. An empty value is a value.
  std::optional<std::string> get(std::string_view name) const;

  /// The value or, where the variable is unset or empty, `fallback`.
  std::string get_or(std::string_view name, std::string_view fallback) const;

  /// All that is set, the process's own variables included.
  std::map<std::string, std::string> variables() const;

  void set(std::string_view name, std::string value);
  void unset(std::string_view name);

 private:
  std::map<std::string, std::optional<std::string>, std::less<>> overlay_;
};

}  // namespace accelerate
