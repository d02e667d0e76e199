/// What NCCL's own model of time is made of: the constants of its tuning.cc, and the speeds that
/// its search.cc tries, by version.
///
/// Units: microseconds; GB/s are 1e9 bytes per second. Threads: pure functions; results live as
/// long as the process.
/// Mirrors: github.com/NVIDIA/nccl, src/graph/{tuning,search}.cc, src/graph/topo.h,
/// src/transport/nvls.cc, src/include/device.h, at the tags that constants.cc names.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "accelerate/base/enum_text.h"

namespace accelerate::simulator::nccl {

/// In NCCL's order, by which ties are decided. CollNet, which it has off by default, is left out.
enum class Algorithm { kTree, kRing, kNvls, kNvlsTree, kPat };
inline constexpr size_t kNumAlgorithms = 5;
enum class Protocol { kLl, kLl128, kSimple };
inline constexpr size_t kNumProtocols = 3;

enum class Generation { kAmpere, kHopper, kBlackwell };
inline constexpr size_t kNumGenerations = 3;

using ByProtocol = std::array<double, kNumProtocols>;
using ByAlgorithm = std::array<ByProtocol, kNumAlgorithms>;
/// On one node, on two, on more.
using ByNodes = std::array<double, 3>;
using ByGeneration = std::array<ByNodes, kNumGenerations>;

struct Constants {
  /// The first version that has them, as ncclGetVersion() tells it.
  int from = 0;
  ByAlgorithm base_latency_us = {};
  /// One step over NVLink, and one over the network.
  ByAlgorithm node_latency_us = {};
  ByAlgorithm network_latency_us = {};

  /// The most that LL reaches: on one node by generation, on two and on more by the CPU's vendor.
  std::array<double, kNumGenerations> ll_on_one_node = {};
  ByNodes ll_with_intel = {};
  ByNodes ll_with_amd = {};
  /// The most that one channel reaches.
  ByGeneration ring_ll128 = {};
  ByGeneration tree_ll128 = {};
  ByGeneration tree = {};
  ByGeneration nvls_tree = {};
  /// The share of NVLink that NVLS reaches; from 2.28 on.
  std::array<double, kNumGenerations> nvls_share = {};
  double pat_share = 0;

  /// What NCCL counts for one NVLink, and what its data sheet says for one direction.
  std::array<double, kNumGenerations> nvlink = {};
  std::array<double, kNumGenerations> nvlink_of_data_sheet = {25, 25, 50};
  int max_channels = 0;
  int nvls_channels_on_one_node = 0;  ///< of Blackwell
  /// What the search tries for one channel: on one node, on several.
  std::array<std::vector<double>, kNumGenerations> node_speeds;
  std::array<std::vector<double>, kNumGenerations> network_speeds;
};

/// Those of the newest row that is not newer than `version`, which is at least 21903.
const Constants& constants_of(int version);

/// The share of a tree's bandwidth that messages of medium size reach, by protocol and
/// floor(log2(bytes / 64)). In all versions.
inline constexpr size_t kNumTreeCorrections = 24;
extern const std::array<std::array<double, kNumTreeCorrections>, kNumProtocols> kTreeCorrection;

}  // namespace accelerate::simulator::nccl

namespace accelerate {

// NCCL's names.
ACCELERATE_ENUM_TEXTS(simulator::nccl::Algorithm, "algorithm", "Tree", "Ring", "NVLS", "NVLSTree",
                      "PAT")
ACCELERATE_ENUM_TEXTS(simulator::nccl::Protocol, "protocol", "LL", "LL128", "Simple")

}  // namespace accelerate
