// Collectives of GPUs by NVIDIA under efficiency=measured, the default.

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "simulator/network/network.h"

namespace accelerate::simulator {
namespace {

using Kind = CollectiveKind;
using Algorithm = CollectiveAlgorithm;

ClusterSpec spec_of(const std::string& text) {
  absl::StatusOr<ClusterSpec> spec = ClusterSpec::parse(text);
  EXPECT_TRUE(spec.ok()) << spec.status().message();
  return *spec;
}

Network measured(const std::string& text) { return Network(spec_of(text)); }

std::vector<int> range(int count) {
  std::vector<int> ranks(count);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Computed from NCCL 2.28.9's formulas by a second implementation, as the tables of
// nccl/model_test.cc: cluster, collective, and by bytes the choice and its microseconds.
constexpr char kTimes[] = R"(
a100x8 AllReduce 1024=Ring/LL:15.02 4096=Ring/LL:15.08 16384=Ring/LL:15.33 65536=Ring/LL:16.31
  262144=Ring/LL:20.23 1048576=Ring/LL:35.92 4194304=Ring/LL128:73.84 16777216=Ring/LL128:173.57
  67108864=Ring/Simple:545.34 268435456=Ring/Simple:2013.34 1073741824=Ring/Simple:7885.37
  4294967296=Ring/Simple:31373.5
a100x8 AllGather 1024=Ring/LL:10.81 4096=Ring/LL:10.84 16384=Ring/LL:10.96 65536=Ring/LL:11.45
  262144=Ring/LL:13.42 1048576=Ring/LL:21.26 4194304=Ring/LL128:43.92 16777216=Ring/Simple:93.37
  67108864=Ring/Simple:276.87 268435456=Ring/Simple:1010.87 1073741824=Ring/Simple:3946.88
  4294967296=Ring/Simple:15690.9
a100x8 ReduceScatter 1024=Ring/LL:10.81 4096=Ring/LL:10.84 16384=Ring/LL:10.96 65536=Ring/LL:11.45
  262144=Ring/LL:13.42 1048576=Ring/LL:21.26 4194304=Ring/LL128:43.92 16777216=Ring/Simple:93.37
  67108864=Ring/Simple:276.87 268435456=Ring/Simple:1010.87 1073741824=Ring/Simple:3946.88
  4294967296=Ring/Simple:15690.9
h100x8 AllReduce 1024=Ring/LL:15.01 4096=Ring/LL:15.05 16384=Ring/LL:15.2 65536=Ring/LL:15.81
  262144=Ring/LL:18.25 1048576=Ring/LL:28.01 4194304=NVLS/Simple:40.42 16777216=NVLS/Simple:86.68
  67108864=NVLS/Simple:271.72 268435456=NVLS/Simple:1011.9 1073741824=NVLS/Simple:3972.58
  4294967296=NVLS/Simple:15815.3
h100x8 AllGather 1024=Ring/LL:10.81 4096=Ring/LL:10.83 16384=Ring/LL:10.9 65536=Ring/LL:11.21
  262144=Ring/LL:12.43 1048576=Ring/LL:17.31 4194304=Ring/LL:36.83 16777216=Ring/LL128:71.62
  67108864=Ring/Simple:195.31 268435456=Ring/Simple:684.65 1073741824=Ring/Simple:2641.99
  4294967296=Ring/Simple:10471.4
h100x8 ReduceScatter 1024=Ring/LL:10.81 4096=Ring/LL:10.83 16384=Ring/LL:10.9 65536=Ring/LL:11.21
  262144=Ring/LL:12.43 1048576=Ring/LL:17.31 4194304=Ring/LL:36.83 16777216=Ring/LL128:71.62
  67108864=Ring/Simple:195.31 268435456=Ring/Simple:684.65 1073741824=Ring/Simple:2641.99
  4294967296=Ring/Simple:10471.4
a100x8x2 AllReduce 1024=Tree/LL:25.3 4096=Tree/LL:25.72 16384=Tree/LL:27.28 65536=Tree/LL:34.91
  262144=Tree/LL128:53.96 1048576=Tree/LL128:70.35 4194304=Tree/LL128:114.04
  16777216=Ring/LL128:274.61 67108864=Ring/LL128:864.43 268435456=Ring/Simple:2907.6
  1073741824=Ring/Simple:10771.9 4294967296=Ring/Simple:42229.2
a100x8x2 AllGather 1024=Ring/LL:37.34 4096=Ring/LL:37.47 16384=Ring/LL:37.98 65536=Ring/LL:40.03
  262144=Ring/LL128:47.54 1048576=Ring/LL128:52.14 4194304=Ring/LL128:70.58
  16777216=Ring/LL128:144.3 67108864=Ring/Simple:434.08 268435456=Ring/Simple:1417.12
  1073741824=Ring/Simple:5349.28 4294967296=Ring/Simple:21077.9
a100x8x2 ReduceScatter 1024=Ring/LL:37.34 4096=Ring/LL:37.47 16384=Ring/LL:37.98
  65536=Ring/LL:40.03 262144=Ring/LL128:47.54 1048576=Ring/LL128:52.14 4194304=Ring/LL128:70.58
  16777216=Ring/LL128:144.3 67108864=Ring/Simple:434.08 268435456=Ring/Simple:1417.12
  1073741824=Ring/Simple:5349.28 4294967296=Ring/Simple:21077.9
a100x8x4 AllReduce 1024=Tree/LL:35.32 4096=Tree/LL:35.82 16384=Tree/LL:37.66 65536=Tree/LL:46.7
  262144=Tree/LL128:72.05 1048576=Tree/LL128:91.68 4194304=Tree/LL128:144.05
  16777216=Tree/LL128:344.77 67108864=Ring/LL128:962.65 268435456=Ring/Simple:3308.58
  1073741824=Ring/Simple:11435 4294967296=Ring/Simple:43940.9
a100x8x4 AllGather 1024=Ring/LL:70.75 4096=Ring/LL:70.91 16384=Ring/LL:71.54 65536=Ring/LL:74.04
  262144=Ring/LL128:83.59 1048576=Ring/LL128:88.35 4194304=Ring/LL128:107.4
  16777216=Ring/LL128:183.58 67108864=Ring/LL128:488.32 268435456=Ring/Simple:1572.81
  1073741824=Ring/Simple:5636.04 4294967296=Ring/Simple:21889
a100x8x4 ReduceScatter 1024=Ring/LL:70.75 4096=Ring/LL:70.91 16384=Ring/LL:71.54
  65536=Ring/LL:74.04 262144=Ring/LL128:83.59 1048576=Ring/LL128:88.35 4194304=Ring/LL128:107.4
  16777216=Ring/LL128:183.58 67108864=Ring/LL128:488.32 268435456=Ring/Simple:1572.81
  1073741824=Ring/Simple:5636.04 4294967296=Ring/Simple:21889
h100x8x2 AllReduce 1024=Tree/LL:25.26 4096=Tree/LL:25.5 16384=Tree/LL:26.4 65536=Tree/LL:30.8
  262144=Tree/LL128:51.48 1048576=Tree/LL128:60.4 4194304=NVLSTree/Simple:83.84
  16777216=NVLSTree/Simple:134.95 67108864=NVLSTree/Simple:339.39
  268435456=NVLSTree/Simple:1157.17 1073741824=NVLSTree/Simple:4428.29
  4294967296=NVLSTree/Simple:17512.8
h100x8x2 AllGather 1024=Ring/LL:23.32 4096=Ring/LL:23.4 16384=Ring/LL:23.69 65536=Ring/LL:24.88
  262144=Ring/LL:29.6 1048576=Ring/LL128:47.95 4194304=Ring/LL128:57.99 16777216=Ring/LL128:98.17
  67108864=Ring/Simple:233.84 268435456=Ring/Simple:725.36 1073741824=Ring/Simple:2691.44
  4294967296=Ring/Simple:10555.8
h100x8x2 ReduceScatter 1024=Ring/LL:23.32 4096=Ring/LL:23.4 16384=Ring/LL:23.69
  65536=Ring/LL:24.88 262144=Ring/LL:29.6 1048576=Ring/LL128:47.95 4194304=Ring/LL128:57.99
  16777216=Ring/LL128:98.17 67108864=Ring/Simple:233.84 268435456=Ring/Simple:725.36
  1073741824=Ring/Simple:2691.44 4294967296=Ring/Simple:10555.8
h100x8x4 AllReduce 1024=Tree/LL:35.31 4096=Tree/LL:35.77 16384=Tree/LL:37.49 65536=Tree/LL:45.91
  262144=Tree/LL128:69.27 1048576=Tree/LL128:80.57 4194304=Tree/LL128:110.7
  16777216=NVLSTree/Simple:197.9 67108864=NVLSTree/Simple:465.81 268435456=NVLSTree/Simple:1537.43
  1073741824=Ring/Simple:5813.56 4294967296=Ring/Simple:22066.5
h100x8x4 AllGather 1024=Ring/LL:42.75 4096=Ring/LL:42.89 16384=Ring/LL:43.48 65536=Ring/LL:45.81
  262144=Ring/LL:55.15 1048576=Ring/LL128:82.66 4194304=Ring/LL128:93.04
  16777216=Ring/LL128:134.56 67108864=Ring/LL128:300.63 268435456=Ring/Simple:822.81
  1073741824=Ring/Simple:2854.42 4294967296=Ring/Simple:10980.9
h100x8x4 ReduceScatter 1024=Ring/LL:42.75 4096=Ring/LL:42.89 16384=Ring/LL:43.48
  65536=Ring/LL:45.81 262144=Ring/LL:55.15 1048576=Ring/LL128:82.66 4194304=Ring/LL128:93.04
  16777216=Ring/LL128:134.56 67108864=Ring/LL128:300.63 268435456=Ring/Simple:822.81
  1073741824=Ring/Simple:2854.42 4294967296=Ring/Simple:10980.9
)";

TEST(NcclCosts, AreThoseOfTheFormulas) {
  const std::map<std::string, std::vector<std::string>> clusters = {
      {"a100x8", {"1x8:a100-80"}},   {"h100x8", {"1x8:h100", "1x8:h200"}},
      {"a100x8x2", {"2x8:a100-80"}}, {"h100x8x2", {"2x8:h100", "2x8:h200"}},
      {"a100x8x4", {"4x8:a100-80"}}, {"h100x8x4", {"4x8:h100", "4x8:h200"}}};
  const std::map<std::string, Kind> kinds = {{"AllReduce", Kind::kAllReduce},
                                             {"AllGather", Kind::kAllGather},
                                             {"ReduceScatter", Kind::kReduceScatter}};
  int compared = 0;
  const std::string text = absl::StrReplaceAll(kTimes, {{"\n  ", " "}});
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    for (const std::string& cluster : clusters.at(words[0])) {
      const Network network = measured(cluster);
      for (size_t i = 2; i < words.size(); ++i) {
        const std::vector<std::string> parts =
            absl::StrSplit(words[i], absl::ByAnyChar("=:"));  // bytes, choice, microseconds
        int64_t bytes = 0;
        double us = 0;
        ASSERT_TRUE(absl::SimpleAtoi(parts[0], &bytes) && absl::SimpleAtod(parts[2], &us));
        const CollectiveTime time =
            network.collective(kinds.at(words[1]), range(network.spec().world_size()), bytes);
        EXPECT_NEAR(static_cast<double>(time.ns) / 1000, us, 0.01 * us)
            << cluster << " " << words[i];
        const std::string own =
            absl::StrReplaceAll(time.name(), {{"nvls tree", "nvlstree"}, {" ", "/"}});
        EXPECT_EQ(absl::AsciiStrToLower(own), absl::AsciiStrToLower(parts[1]))
            << cluster << words[i];
        EXPECT_GT(time.channels, 0);
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, 18 * 12 * 3 / 2);
}

TEST(NcclCosts, AreOffUnderIdealAndElsewhere) {
  for (const char* text : {"2x8:h100,efficiency=ideal", "2x8:h100,node=pcie", "2x8:h100,node=mesh",
                           "2x8:mi300x", "tpu-v4:4x4"}) {
    const Network network(spec_of(text));
    const CollectiveTime time = network.collective(Kind::kAllReduce, range(16), 1 << 20);
    EXPECT_FALSE(time.protocol.has_value()) << text;
    EXPECT_EQ(time.channels, 0) << text;
    EXPECT_EQ(time.name(), to_string(time.algorithm)) << text;
    EXPECT_FALSE(network.costs_of(range(16)).nccl.has_value()) << text;
    EXPECT_EQ(network.collective_ns(Kind::kAllReduce, Algorithm::kNvls, range(16), 1), -1) << text;
  }
}

TEST(NcclCosts, FollowTheVersion) {
  const auto ns = [](const std::string& text) {
    return measured(text).collective(Kind::kAllReduce, range(8), 1 << 18).ns;
  };
  EXPECT_EQ(ns("1x8:h100,nccl=2.28.9"), ns("1x8:h100"));
  // LL has half of a ring's bandwidth, before 2.21 a quarter.
  EXPECT_GT(ns("1x8:h100,nccl=2.20.5"), ns("1x8:h100,nccl=2.21.5"));
}

TEST(NcclCosts, OfOneAlgorithmAreItsFastestProtocols) {
  const Network network = measured("2x8:h100");
  for (const int64_t bytes : {1 << 10, 1 << 20, 1 << 28}) {
    const CollectiveTime best = network.collective(Kind::kAllReduce, range(16), bytes);
    int64_t fastest = INT64_MAX;
    for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kTree, Algorithm::kNvlsTree}) {
      const int64_t ns = network.collective_ns(Kind::kAllReduce, algorithm, range(16), bytes);
      EXPECT_GT(ns, 0);
      fastest = std::min(fastest, ns);
    }
    EXPECT_EQ(best.ns, fastest);
    for (const Algorithm algorithm : {Algorithm::kHierarchical, Algorithm::kNvls, Algorithm::kPat,
                                      Algorithm::kDirect, Algorithm::kNone}) {
      EXPECT_EQ(network.collective_ns(Kind::kAllReduce, algorithm, range(16), bytes), -1);
    }
  }
}

// A barrier is an all-reduce of one element; direct messages begin as one step of a ring with LL.
TEST(NcclCosts, OfWhatNcclDoesNotModel) {
  const Network network = measured("2x8:h100");
  EXPECT_EQ(network.collective(Kind::kBarrier, range(16), 0).ns,
            network.collective(Kind::kAllReduce, range(16), 4).ns);
  EXPECT_EQ(network.collective(Kind::kAllToAll, range(8), 0).ns, 6600 + 600);
  EXPECT_EQ(network.collective(Kind::kAllToAll, range(16), 0).ns, 6600 + 2700);
  EXPECT_NEAR(network.collective(Kind::kAllToAll, range(8), 1'000'000'000).ns,
              7200 + 7.0 / 8 * 1e9 / 370.8, 1);
  EXPECT_EQ(network.collective(Kind::kAllToAll, range(8), 0).name(), "direct");
  EXPECT_EQ(network.route(0, 1).latency_ns, 7200);
  EXPECT_EQ(network.route(0, 9).latency_ns, 9300);
  const auto& links = network.link_bytes_per_second();
  EXPECT_NEAR(links[network.route(0, 1).links[0]], 370.8e9, 1);
  EXPECT_NEAR(links[network.route(0, 8).links[0]], 48e9, 1);
}

TEST(NcclCosts, GrowWithALatencyBeyondTheUsual) {
  const auto ns = [](const std::string& text) {
    return measured(text).collective(Kind::kAllReduce, range(16), 1024).ns;
  };
  EXPECT_EQ(ns("2x8:h100"), ns("2x8:h100,nic_latency=1.2us"));
  EXPECT_GT(ns("2x8:h100,nic_latency=10us"), ns("2x8:h100") + 2 * 17'000);
}

// ---- Relations.

std::vector<std::vector<int>> groups_of_32() {
  return {range(32), range(8),       range(2),     range(12),        {0, 4, 8, 12, 16, 20},
          {0, 16},   {0, 9, 18, 27}, {1, 2, 11},   {0, 1, 2, 3, 31}, {7, 8},
          range(24), {0, 8, 16, 24}, {0, 1, 8, 9}, range(16)};
}

constexpr Kind kKinds[] = {Kind::kAllReduce, Kind::kReduce,        Kind::kBroadcast,
                           Kind::kAllGather, Kind::kReduceScatter, Kind::kAllToAll,
                           Kind::kGather,    Kind::kScatter,       Kind::kBarrier};
constexpr const char* kClusters[] = {
    "4x8:a100-80", "4x8:h100",           "4x8:h200,nics=2",     "4x8:h100,fabric=ethernet",
    "4x8:b200",    "4x8:a100-80,nics=4", "4x8:h100,nccl=2.19.3"};

// NCCL's table of corrections for trees rises in steps, at powers of two, and so does the
// bandwidth: above a step a message is faster than a smaller one below it. A running maximum would
// hide that, but be off the times by which NCCL chooses. The highest step is from 0.6 to 0.8, so
// that a message loses at most a quarter of its time.
TEST(NcclRelations, MoreBytesAreFasterOnlyAtTheStepsOfTrees) {
  double worst = 0;
  for (const char* text : kClusters) {
    const Network network = measured(text);
    for (const std::vector<int>& group : groups_of_32()) {
      for (const Kind kind : kKinds) {
        CollectiveTime before;
        for (int64_t bytes = 1; bytes < int64_t{1} << 40; bytes += bytes / 16 + 1) {
          const CollectiveTime time = network.collective(kind, group, bytes);
          EXPECT_GT(time.ns, 0) << text;
          if (time.ns < before.ns) {
            EXPECT_TRUE(time.algorithm == Algorithm::kTree ||
                        time.algorithm == Algorithm::kNvlsTree)
                << text << " " << bytes << " " << time.name();
            EXPECT_GE(bytes, 1 << 20) << text;
            worst = std::max(worst, 1 - static_cast<double>(time.ns) / before.ns);
          }
          before = time;
        }
      }
    }
  }
  EXPECT_GT(worst, 0);
  EXPECT_LT(worst, 0.25);
}

TEST(NcclRelations, MoreBandwidthIsNeverSlower) {
  for (const char* text : kClusters) {
    const ClusterSpec spec = spec_of(text);
    const Network slow(spec);
    for (const double factor : {1.01, 2.0, 100.0}) {
      for (const bool of_nics : {false, true}) {
        ClusterSpec faster = spec;
        (of_nics ? faster.nic : faster.node_link).bytes_per_second *= factor;
        const Network fast(faster);
        for (const std::vector<int>& group : groups_of_32()) {
          for (const Kind kind : kKinds) {
            for (const int64_t bytes : {0, 1'000, 1'000'000, 1'000'000'000}) {
              EXPECT_GE(slow.collective(kind, group, bytes).ns,
                        fast.collective(kind, group, bytes).ns)
                  << text << " " << factor << (of_nics ? " NICs " : " links ")
                  << static_cast<int>(kind) << " " << bytes << " group of " << group.size() << " "
                  << slow.collective(kind, group, bytes).name() << " "
                  << fast.collective(kind, group, bytes).name();
            }
          }
        }
      }
    }
  }
}

TEST(NcclRelations, EqualGroupsHaveEqualCosts) {
  const Network network = measured("4x8:h100");
  EXPECT_EQ(network.costs_of({0, 8, 16, 24}), network.costs_of({3, 11, 19, 27}));
  EXPECT_EQ(network.costs_of({0, 1}), network.costs_of({30, 31}));
  EXPECT_NE(network.costs_of({0, 1}), network.costs_of({0, 8}));
}

}  // namespace
}  // namespace accelerate::simulator
