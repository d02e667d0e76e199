/// The time of a collective by NCCL's own model, by which it chooses its algorithm and protocol:
///
///   time = latency + bytes / bandwidth
///
/// for each algorithm and protocol, with corrections by size. The fastest is chosen. The formulas
/// are in ../README.md; NCCL_DEBUG_SUBSYS=TUNING prints the same table on a real cluster.
///
/// Units: bytes as network.h counts them, microseconds, GB/s are 1e9 bytes per second.
/// Threads: a Tuning is immutable.
/// Mirrors: github.com/NVIDIA/nccl, src/graph/tuning.cc (ncclTopoTuneModel, ncclTopoGetAlgoTime)
/// and src/enqueue.cc (topoGetAlgoInfo).
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "simulator/network/nccl/constants.h"
#include "simulator/network/nccl/search.h"

namespace accelerate::simulator::nccl {

enum class Collective { kBroadcast, kReduce, kAllGather, kReduceScatter, kAllReduce };
inline constexpr size_t kNumCollectives = 5;

/// Where values can be reduced; irrelevant to collectives without a reduction.
enum class Reduction {
  kInSwitches,  ///< by NVSwitch, too: sums of floating-point numbers, extremes in 16 bits, integers
  kOnDevices,   ///< other types and operations
  kScaled,      ///< averages, which GPUs divide: neither in switches nor by PAT
};

class Tuning {
 public:
  struct Entry {
    double latency_us = 0;
    double gb_per_second = 0;  ///< of the algorithm, not of the bus; 0: it cannot be had

    auto operator<=>(const Entry&) const = default;
  };
  struct Choice {
    Algorithm algorithm = Algorithm::kRing;
    Protocol protocol = Protocol::kSimple;
    double us = 0;
    int channels = 0;  ///< that run; a multiprocessor each
  };

  /// `shape` has two ranks or more.
  Tuning(const Machine& machine, const Shape& shape);
  /// With given channels.
  Tuning(const Machine& machine, const Shape& shape, const Graphs& graphs);

  const Graphs& graphs() const { return graphs_; }
  const Entry& entry(Collective collective, Algorithm algorithm, Protocol protocol) const {
    return entries_[static_cast<size_t>(collective)][static_cast<size_t>(algorithm)]
                   [static_cast<size_t>(protocol)];
  }

  /// The time of one algorithm and protocol; nullopt where it does not apply.
  std::optional<double> us(Collective collective, Algorithm algorithm, Protocol protocol,
                           int64_t bytes, Reduction reduction = Reduction::kInSwitches) const;

  /// The fastest; ties go to the first in the order of the enumerations.
  Choice choose(Collective collective, int64_t bytes,
                Reduction reduction = Reduction::kInSwitches) const;
  /// The fastest protocol of one algorithm; nullopt where it does not apply.
  std::optional<Choice> choose(Collective collective, Algorithm algorithm, int64_t bytes,
                               Reduction reduction = Reduction::kInSwitches) const;

  /// The channels that a message of this size takes.
  int channels(Algorithm algorithm, Protocol protocol, int64_t bytes) const;

  /// The order has no meaning; equal tunings give equal times.
  auto operator<=>(const Tuning&) const = default;

 private:
  int ranks_ = 0;
  int nodes_ = 0;
  int version_ = 0;
  Generation generation_ = Generation::kAmpere;
  Graphs graphs_;
  std::array<std::array<std::array<Entry, kNumProtocols>, kNumAlgorithms>, kNumCollectives>
      entries_ = {};
};

/// What a message between two GPUs takes besides its bytes. NCCL has no model for it; an estimate:
/// a kernel's start and one step of a ring with LL.
double message_latency_us(const Machine& machine, bool one_node);

}  // namespace accelerate::simulator::nccl
