#include "simulator/network/nccl/constants.h"

#include "absl/log/absl_check.h"

namespace accelerate::simulator::nccl {
namespace {

// Algorithms in the order of the enumeration; LL, LL128, Simple. The vendor's tables have a row for
// Volta, too, which no simulated device with measured kernels needs.
Constants v2_19_3() {
  const std::vector<double> older_node = {40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3};
  const std::vector<double> older_network = {48, 30, 28, 24, 20, 18,  15,  12,   10,  9,
                                             7,  6,  5,  4,  3,  2.4, 1.2, 0.24, 0.12};
  const std::vector<double> hopper_node = {60, 50, 40, 30, 24, 20, 15, 12, 6, 3};
  const std::vector<double> hopper_network = {48, 45, 42, 40, 30,  24,  22,   20,  17.5,
                                              15, 12, 6,  3,  2.4, 1.2, 0.24, 0.12};
  return {.from = 21903,
          .base_latency_us = {{{6.8, 14, 0}, {6.6, 14, 8.4}, {}, {}, {}}},
          .node_latency_us = {{{0.6, 1.25, 28}, {0.6, 1.9, 3.4}, {0, 0, 23}, {0, 0, 23}, {}}},
          .network_latency_us = {{{5, 8.5, 28}, {2.7, 4, 14}, {0, 0, 18}, {0, 0, 14}, {}}},
          .ll_on_one_node = {87.7, 87.7},
          .ll_with_intel = {0, 39, 20.4},
          .ll_with_amd = {0, 22.5, 19},
          .ring_ll128 = {{{20, 20, 20}, {36.7, 36.7, 36.7}}},
          .tree_ll128 = {{{20, 20, 20}, {36.7, 36.7, 29}}},
          .tree = {{{24, 23.6, 17.8}, {38.7, 41.4, 36}}},
          .nvlink = {20, 20},
          .max_channels = 32,
          .node_speeds = {older_node, hopper_node},
          .network_speeds = {older_network, hopper_network}};
}

// One row for each release that changed something; each begins with those of the release before.
std::vector<Constants> rows() {
  const auto of = [](Algorithm algorithm) { return static_cast<size_t>(algorithm); };
  constexpr auto kHopper = static_cast<size_t>(Generation::kHopper);
  constexpr auto kBlackwell = static_cast<size_t>(Generation::kBlackwell);
  constexpr auto kSimple = static_cast<size_t>(Protocol::kSimple);
  std::vector<Constants> rows = {v2_19_3()};
  const auto next = [&rows](int from) -> Constants& {
    rows.push_back(rows.back());
    rows.back().from = from;
    return rows.back();
  };
  next(22005).nvlink[kHopper] = 20.6;

  Constants& v2_21_5 = next(22105);
  v2_21_5.ll_on_one_node[kHopper] = 141;
  v2_21_5.node_latency_us[of(Algorithm::kNvls)][kSimple] = 25;
  v2_21_5.node_latency_us[of(Algorithm::kNvlsTree)][kSimple] = 25;
  v2_21_5.node_speeds[kHopper] = {60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3};

  Constants& v2_23_4 = next(22304);
  v2_23_4.base_latency_us[of(Algorithm::kTree)][kSimple] = 8.4;
  v2_23_4.node_latency_us[of(Algorithm::kTree)][kSimple] = 4;
  v2_23_4.network_latency_us[of(Algorithm::kTree)][kSimple] = 14;
  v2_23_4.base_latency_us[of(Algorithm::kPat)] = {8, 8, 8};
  v2_23_4.node_latency_us[of(Algorithm::kPat)] = {0, 0, 4};
  v2_23_4.network_latency_us[of(Algorithm::kPat)] = {0, 0, 14};
  v2_23_4.pat_share = 0.85;

  next(22403).pat_share = 0.75;

  Constants& v2_25_1 = next(22501);
  v2_25_1.ll_on_one_node[kBlackwell] = 282;
  v2_25_1.ring_ll128[kBlackwell] = {73.4, 73.4, 73.4};
  v2_25_1.tree_ll128[kBlackwell] = {73.4, 73.4, 58};
  v2_25_1.tree[kBlackwell] = {77.4, 82.8, 72};
  v2_25_1.nvlink[kBlackwell] = 40;
  v2_25_1.max_channels = 64;
  v2_25_1.nvls_channels_on_one_node = 32;
  v2_25_1.node_speeds[kBlackwell] = {90, 80, 70, 60, 50, 40, 30, 24, 20, 19};
  v2_25_1.network_speeds[kBlackwell] = v2_25_1.network_speeds[kHopper];

  Constants& v2_27_3 = next(22703);
  v2_27_3.nvls_channels_on_one_node = 24;
  v2_27_3.node_speeds[kBlackwell] = {90, 80, 70, 60, 50, 40, 30, 24, 20, 19, 18};
  v2_27_3.network_speeds[kBlackwell][0] = 47.9;

  Constants& v2_27_5 = next(22705);
  v2_27_5.nvlink[kBlackwell] = 40.1;
  v2_27_5.network_speeds[kBlackwell] = {48, 45.1, 42, 40, 30,  24,  22,   20,  17.5,
                                        15, 12,   6,  3,  2.4, 1.2, 0.24, 0.12};

  Constants& v2_27_6 = next(22706);
  v2_27_6.network_speeds[kBlackwell].insert(v2_27_6.network_speeds[kBlackwell].begin(), 96);

  Constants& v2_28_3 = next(22803);
  v2_28_3.tree_ll128[kBlackwell] = {55.6, 31.67, 20};
  v2_28_3.tree[kBlackwell] = {70, 42.8, 24};
  v2_28_3.nvls_tree = {{{24, 23.6, 17.8}, {0, 57.7, 45.5}, {0, 96, 43.1}}};
  v2_28_3.nvls_share = {0, 0.85, 0.74};

  next(22807).ring_ll128[kBlackwell] = {73.4, 34.6, 73.4};

  Constants& v2_28_9 = next(22809);
  v2_28_9.network_latency_us[of(Algorithm::kNvlsTree)][kSimple] = 20.9;
  v2_28_9.nvls_tree[kBlackwell] = {0, 96, 43.8};

  Constants& v2_29_2 = next(22902);
  v2_29_2.ring_ll128[kBlackwell] = {34.5, 34.6, 34.5};
  v2_29_2.node_speeds[kBlackwell] = {90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18};

  Constants& v2_29_7 = next(22907);
  v2_29_7.ring_ll128[kBlackwell] = {40, 40, 40};
  v2_29_7.network_speeds[kBlackwell].insert(v2_29_7.network_speeds[kBlackwell].begin() + 1, 80);

  Constants& v2_30_3 = next(23003);
  v2_30_3.nvls_tree[kBlackwell] = {0, 96, 80};
  v2_30_3.network_speeds[kBlackwell].insert(v2_30_3.network_speeds[kBlackwell].begin() + 1, 86);
  return rows;
}

}  // namespace

const Constants& constants_of(int version) {
  static const auto* all = new std::vector<Constants>(rows());
  ABSL_CHECK_GE(version, all->front().from);
  const Constants* newest = nullptr;
  for (const Constants& row : *all) {
    if (row.from <= version) newest = &row;
  }
  return *newest;
}

// Above 256 MiB the vendor's table ends, which is a factor of 1; from 2.29 on it has one more
// entry, which only NVLSTree uses.
const std::array<std::array<double, kNumTreeCorrections>, kNumProtocols> kTreeCorrection = {
    {{1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1, 1},
     {1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1, 1},
     {.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5,
      .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9, .9}}};

}  // namespace accelerate::simulator::nccl
