/// Names of the environment variables that carry a run's shape and mode from a launcher
/// (`launch`, torchrun, mpirun, a test) to the program that it starts.
///
/// This is the whole contract between `launch` and `accelerate`; it needs neither LibTorch nor
/// Abseil. Values are decimal text unless stated. Mirrors: the torchrun environment contract.
#pragma once

namespace accelerate::env {

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

/// Topology of a simulated cluster, as in "2x4" or "2x4:h100" (simulator/hardware); its presence
/// selects the simulated run mode.
inline constexpr char kSimulate[] = "ACCELERATE_SIMULATE";
/// Scheduler seed of a simulated run, unsigned 64 bits. Default 0.
inline constexpr char kSimulateSeed[] = "ACCELERATE_SIMULATE_SEED";
/// Directory for a simulated run's report. Unset: none is written.
inline constexpr char kSimulateReport[] = "ACCELERATE_SIMULATE_REPORT";

}  // namespace accelerate::env
