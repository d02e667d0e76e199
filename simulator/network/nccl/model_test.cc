#include "simulator/network/nccl/model.h"

#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace accelerate::simulator::nccl {
namespace {

constexpr Algorithm kAlgorithms[] = {Algorithm::kTree, Algorithm::kRing, Algorithm::kNvls,
                                     Algorithm::kNvlsTree, Algorithm::kPat};
constexpr Protocol kProtocols[] = {Protocol::kLl, Protocol::kLl128, Protocol::kSimple};
constexpr Collective kCollectives[] = {Collective::kBroadcast, Collective::kReduce,
                                       Collective::kAllGather, Collective::kReduceScatter,
                                       Collective::kAllReduce};

// ---- Tables by a second implementation, a script that was written from NCCL's sources and of
// which a table that NCCL printed comes out to the digit (below).

// By version, cluster and collective: "algorithm/protocol:latency/bandwidth", where the latter is
// not zero. Nodes of 8; A100 with CPUs by AMD and NICs of 200 Gb/s, H100 with CPUs by Intel and
// 400.
constexpr char kTables[] = R"(
2.19.3 a100x8 AllReduce Tree/LL:15.2/29.05 Tree/LL128:31.5/85.87 Tree/Simple:392/110.4
  Ring/LL:15/34.29 Ring/LL128:40.6/126.17 Ring/Simple:56/137.14
2.19.3 a100x8 AllGather Ring/LL:10.8/91.43 Ring/LL128:27.3/252.34 Ring/Simple:32.2/274.29
2.19.3 a100x8 ReduceScatter Ring/LL:10.8/91.43 Ring/LL128:27.3/252.34 Ring/Simple:32.2/274.29
2.27.7 a100x8 AllReduce Tree/LL:15.2/29.05 Tree/LL128:31.5/85.87 Tree/Simple:64.4/110.4
  Ring/LL:15/50.11 Ring/LL128:40.6/126.17 Ring/Simple:56/137.14
2.27.7 a100x8 AllGather Ring/LL:10.8/100.23 Ring/LL128:27.3/252.34 Ring/Simple:32.2/274.29
2.27.7 a100x8 ReduceScatter Ring/LL:10.8/100.23 Ring/LL128:27.3/252.34 Ring/Simple:32.2/274.29
2.28.9 a100x8 AllReduce Tree/LL:15.2/29.05 Tree/LL128:31.5/85.87 Tree/Simple:64.4/110.4
  Ring/LL:15/50.11 Ring/LL128:40.6/126.17 Ring/Simple:56/137.14
2.28.9 a100x8 AllGather Ring/LL:10.8/100.23 Ring/LL128:27.3/252.34 Ring/Simple:32.2/274.29
2.28.9 a100x8 ReduceScatter Ring/LL:10.8/100.23 Ring/LL128:27.3/252.34 Ring/Simple:32.2/274.29
2.30.7 a100x8 AllReduce Tree/LL:15.2/29.05 Tree/LL128:31.5/85.87 Tree/Simple:64.4/110.4
  Ring/LL:15/50.11 Ring/LL128:40.6/126.17 Ring/Simple:56/137.14
2.30.7 a100x8 AllGather Ring/LL:10.8/100.23 Ring/LL128:27.3/252.34 Ring/Simple:32.2/274.29
2.30.7 a100x8 ReduceScatter Ring/LL:10.8/100.23 Ring/LL128:27.3/252.34 Ring/Simple:32.2/274.29
2.19.3 h100x8 AllReduce Tree/LL:15.2/43.58 Tree/LL128:31.5/128.8 Tree/Simple:392/165.6
  Ring/LL:15/50.11 Ring/LL128:40.6/189.26 Ring/Simple:56/205.71 NVLS/Simple:23/266.67
2.19.3 h100x8 AllGather Ring/LL:10.8/100.23 Ring/LL128:27.3/378.51 Ring/Simple:32.2/411.43
  NVLS/Simple:23/266.67
2.19.3 h100x8 ReduceScatter Ring/LL:10.8/100.23 Ring/LL128:27.3/378.51 Ring/Simple:32.2/411.43
  NVLS/Simple:23/266.67
2.27.7 h100x8 AllReduce Tree/LL:15.2/43.58 Tree/LL128:31.5/128.8 Tree/Simple:64.4/165.6
  Ring/LL:15/80.57 Ring/LL128:40.6/189.26 Ring/Simple:56/205.71 NVLS/Simple:25/266.67
2.27.7 h100x8 AllGather Ring/LL:10.8/161.14 Ring/LL128:27.3/378.51 Ring/Simple:32.2/411.43
  NVLS/Simple:25/280
2.27.7 h100x8 ReduceScatter Ring/LL:10.8/161.14 Ring/LL128:27.3/378.51 Ring/Simple:32.2/411.43
  NVLS/Simple:25/280
2.28.9 h100x8 AllReduce Tree/LL:15.2/43.58 Tree/LL128:31.5/128.8 Tree/Simple:64.4/165.6
  Ring/LL:15/80.57 Ring/LL128:40.6/189.26 Ring/Simple:56/205.71 NVLS/Simple:25/272
2.28.9 h100x8 AllGather Ring/LL:10.8/161.14 Ring/LL128:27.3/378.51 Ring/Simple:32.2/411.43
  NVLS/Simple:25/208.25
2.28.9 h100x8 ReduceScatter Ring/LL:10.8/161.14 Ring/LL128:27.3/378.51 Ring/Simple:32.2/411.43
  NVLS/Simple:25/208.25
2.30.7 h100x8 AllReduce Tree/LL:15.2/43.58 Tree/LL128:31.5/128.8 Tree/Simple:64.4/165.6
  Ring/LL:15/80.57 Ring/LL128:40.6/189.26 Ring/Simple:56/205.71 NVLS/Simple:25/272
2.30.7 h100x8 AllGather Ring/LL:10.8/161.14 Ring/LL128:27.3/378.51 Ring/Simple:32.2/411.43
  NVLS/Simple:25/208.25
2.30.7 h100x8 ReduceScatter Ring/LL:10.8/161.14 Ring/LL128:27.3/378.51 Ring/Simple:32.2/411.43
  NVLS/Simple:25/208.25
2.19.3 a100x8x2 AllReduce Tree/LL:25.2/11.25 Tree/LL128:48.5/80 Tree/Simple:448/94.4
  Ring/LL:69.4/12 Ring/LL128:82/85.33 Ring/Simple:220.4/102.4
2.19.3 a100x8x2 AllGather Ring/LL:37.3/24 Ring/LL128:46/170.67 Ring/Simple:106.4/204.8
2.19.3 a100x8x2 ReduceScatter Ring/LL:37.3/24 Ring/LL128:46/170.67 Ring/Simple:106.4/204.8
2.27.7 a100x8x2 AllReduce Tree/LL:25.2/11.25 Tree/LL128:48.5/80 Tree/Simple:92.4/94.4
  Ring/LL:68/12 Ring/LL128:78/85.33 Ring/Simple:204.4/102.4
2.27.7 a100x8x2 AllGather Ring/LL:37.3/24 Ring/LL128:46/170.67 Ring/Simple:106.4/204.8
2.27.7 a100x8x2 ReduceScatter Ring/LL:37.3/24 Ring/LL128:46/170.67 Ring/Simple:106.4/204.8
2.28.9 a100x8x2 AllReduce Tree/LL:25.2/11.25 Tree/LL128:48.5/80 Tree/Simple:92.4/94.4
  Ring/LL:68/12 Ring/LL128:78/85.33 Ring/Simple:204.4/102.4
2.28.9 a100x8x2 AllGather Ring/LL:37.3/24 Ring/LL128:46/170.67 Ring/Simple:106.4/204.8
2.28.9 a100x8x2 ReduceScatter Ring/LL:37.3/24 Ring/LL128:46/170.67 Ring/Simple:106.4/204.8
2.30.7 a100x8x2 AllReduce Tree/LL:25.2/11.25 Tree/LL128:48.5/80 Tree/Simple:92.4/94.4
  Ring/LL:68/12 Ring/LL128:78/85.33 Ring/Simple:204.4/102.4
2.30.7 a100x8x2 AllGather Ring/LL:37.3/24 Ring/LL128:46/170.67 Ring/Simple:106.4/204.8
2.30.7 a100x8x2 ReduceScatter Ring/LL:37.3/24 Ring/LL128:46/170.67 Ring/Simple:106.4/204.8
2.19.3 a100x8x4 AllReduce Tree/LL:35.2/9.5 Tree/LL128:65.5/66.75 Tree/Simple:504/71.2
  Ring/LL:136.2/9.81 Ring/LL128:154/82.58 Ring/Simple:444.4/99.1
2.19.3 a100x8x4 AllGather Ring/LL:70.7/19.61 Ring/LL128:82/165.16 Ring/Simple:218.4/198.19
2.19.3 a100x8x4 ReduceScatter Ring/LL:70.7/19.61 Ring/LL128:82/165.16 Ring/Simple:218.4/198.19
2.27.7 a100x8x4 AllReduce Tree/LL:35.2/9.5 Tree/LL128:65.5/66.75 Tree/Simple:120.4/71.2
  Ring/LL:134.8/9.81 Ring/LL128:150/82.58 Ring/Simple:428.4/99.1
2.27.7 a100x8x4 AllGather Ring/LL:70.7/19.61 Ring/LL128:82/165.16 Ring/Simple:218.4/198.19
2.27.7 a100x8x4 ReduceScatter Ring/LL:70.7/19.61 Ring/LL128:82/165.16 Ring/Simple:218.4/198.19
2.28.9 a100x8x4 AllReduce Tree/LL:35.2/9.5 Tree/LL128:65.5/66.75 Tree/Simple:120.4/71.2
  Ring/LL:134.8/9.81 Ring/LL128:150/82.58 Ring/Simple:428.4/99.1
2.28.9 a100x8x4 AllGather Ring/LL:70.7/19.61 Ring/LL128:82/165.16 Ring/Simple:218.4/198.19
2.28.9 a100x8x4 ReduceScatter Ring/LL:70.7/19.61 Ring/LL128:82/165.16 Ring/Simple:218.4/198.19
2.30.7 a100x8x4 AllReduce Tree/LL:35.2/9.5 Tree/LL128:65.5/66.75 Tree/Simple:120.4/71.2
  Ring/LL:134.8/9.81 Ring/LL128:150/82.58 Ring/Simple:428.4/99.1
2.30.7 a100x8x4 AllGather Ring/LL:70.7/19.61 Ring/LL128:82/165.16 Ring/Simple:218.4/198.19
2.30.7 a100x8x4 ReduceScatter Ring/LL:70.7/19.61 Ring/LL128:82/165.16 Ring/Simple:218.4/198.19
2.19.3 h100x8x2 AllReduce Tree/LL:25.2/19.5 Tree/LL128:48.5/146.8 Tree/Simple:448/165.6
  Ring/LL:43.4/20.8 Ring/LL128:79.4/156.59 Ring/Simple:152.8/204.8 NVLSTree/Simple:51/266.67
2.19.3 h100x8x2 AllGather Ring/LL:23.3/41.6 Ring/LL128:44.6/313.17 Ring/Simple:70/409.6
2.19.3 h100x8x2 ReduceScatter Ring/LL:23.3/41.6 Ring/LL128:44.6/313.17 Ring/Simple:70/409.6
2.27.7 h100x8x2 AllReduce Tree/LL:25.2/19.5 Tree/LL128:48.5/146.8 Tree/Simple:92.4/165.6
  Ring/LL:40/20.8 Ring/LL128:75.2/156.59 Ring/Simple:131.6/204.8 NVLSTree/Simple:53/266.67
2.27.7 h100x8x2 AllGather Ring/LL:23.3/41.6 Ring/LL128:44.6/313.17 Ring/Simple:70/409.6
2.27.7 h100x8x2 ReduceScatter Ring/LL:23.3/41.6 Ring/LL128:44.6/313.17 Ring/Simple:70/409.6
2.28.9 h100x8x2 AllReduce Tree/LL:25.2/19.5 Tree/LL128:48.5/146.8 Tree/Simple:92.4/165.6
  Ring/LL:40/20.8 Ring/LL128:75.2/156.59 Ring/Simple:131.6/204.8 NVLSTree/Simple:66.8/246.19
2.28.9 h100x8x2 AllGather Ring/LL:23.3/41.6 Ring/LL128:44.6/313.17 Ring/Simple:70/409.6
2.28.9 h100x8x2 ReduceScatter Ring/LL:23.3/41.6 Ring/LL128:44.6/313.17 Ring/Simple:70/409.6
2.30.7 h100x8x2 AllReduce Tree/LL:25.2/19.5 Tree/LL128:48.5/146.8 Tree/Simple:92.4/165.6
  Ring/LL:40/20.8 Ring/LL128:75.2/156.59 Ring/Simple:131.6/204.8 NVLSTree/Simple:66.8/246.19
2.30.7 h100x8x2 AllGather Ring/LL:23.3/41.6 Ring/LL128:44.6/313.17 Ring/Simple:70/409.6
2.30.7 h100x8x2 ReduceScatter Ring/LL:23.3/41.6 Ring/LL128:44.6/313.17 Ring/Simple:70/409.6
2.19.3 h100x8x4 AllReduce Tree/LL:35.2/10.2 Tree/LL128:65.5/116 Tree/Simple:504/144
  Ring/LL:82.2/10.53 Ring/LL128:148.6/151.54 Ring/Simple:304/198.19 NVLSTree/Simple:79/160
2.19.3 h100x8x4 AllGather Ring/LL:42.7/21.06 Ring/LL128:79.2/303.07 Ring/Simple:145.6/396.39
2.19.3 h100x8x4 ReduceScatter Ring/LL:42.7/21.06 Ring/LL128:79.2/303.07 Ring/Simple:145.6/396.39
2.27.7 h100x8x4 AllReduce Tree/LL:35.2/10.2 Tree/LL128:65.5/116 Tree/Simple:120.4/144
  Ring/LL:78.8/10.53 Ring/LL128:144.4/151.54 Ring/Simple:282.8/198.19 NVLSTree/Simple:81/160
2.27.7 h100x8x4 AllGather Ring/LL:42.7/21.06 Ring/LL128:79.2/303.07 Ring/Simple:145.6/396.39
2.27.7 h100x8x4 ReduceScatter Ring/LL:42.7/21.06 Ring/LL128:79.2/303.07 Ring/Simple:145.6/396.39
2.28.9 h100x8x4 AllReduce Tree/LL:35.2/10.2 Tree/LL128:65.5/116 Tree/Simple:120.4/144
  Ring/LL:78.8/10.53 Ring/LL128:144.4/151.54 Ring/Simple:282.8/198.19 NVLSTree/Simple:108.6/187.87
2.28.9 h100x8x4 AllGather Ring/LL:42.7/21.06 Ring/LL128:79.2/303.07 Ring/Simple:145.6/396.39
2.28.9 h100x8x4 ReduceScatter Ring/LL:42.7/21.06 Ring/LL128:79.2/303.07 Ring/Simple:145.6/396.39
2.30.7 h100x8x4 AllReduce Tree/LL:35.2/10.2 Tree/LL128:65.5/116 Tree/Simple:120.4/144
  Ring/LL:78.8/10.53 Ring/LL128:144.4/151.54 Ring/Simple:282.8/198.19 NVLSTree/Simple:108.6/187.87
2.30.7 h100x8x4 AllGather Ring/LL:42.7/21.06 Ring/LL128:79.2/303.07 Ring/Simple:145.6/396.39
2.30.7 h100x8x4 ReduceScatter Ring/LL:42.7/21.06 Ring/LL128:79.2/303.07 Ring/Simple:145.6/396.39
)";

struct Row {
  std::string version, cluster, collective;
  std::map<std::string, std::pair<double, double>> entries;
};

std::vector<Row> tables() {
  std::vector<Row> rows;
  const std::string text = absl::StrReplaceAll(kTables, {{"\n  ", " "}});
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    Row row = {words[0], words[1], words[2], {}};
    for (size_t i = 3; i < words.size(); ++i) {
      const std::vector<std::string> parts = absl::StrSplit(words[i], ':');
      const std::vector<std::string> figures = absl::StrSplit(parts[1], '/');
      auto& [latency, bandwidth] = row.entries[parts[0]];
      EXPECT_TRUE(absl::SimpleAtod(figures[0], &latency));
      EXPECT_TRUE(absl::SimpleAtod(figures[1], &bandwidth));
    }
    rows.push_back(row);
  }
  return rows;
}

// Nodes of 8 GPUs with a NIC each.
Tuning tuning(const std::string& text) {
  const auto spec = ClusterSpec::parse(text);
  EXPECT_TRUE(spec.ok()) << spec.status();
  const Node node = {8, 8};
  return Tuning(machine_of(*spec), {.ranks = 8 * spec->num_nodes,
                                    .nodes = spec->num_nodes,
                                    .kinds = absl::MakeConstSpan(&node, 1)});
}

TEST(Model, HasTheTablesOfNccl) {
  const std::map<std::string, std::string> clusters = {
      {"a100x8", "1x8:a100-80"}, {"a100x8x2", "2x8:a100-80"}, {"a100x8x4", "4x8:a100-80"},
      {"h100x8", "1x8:h100"},    {"h100x8x2", "2x8:h100"},    {"h100x8x4", "4x8:h100"}};
  const std::map<std::string, Collective> collectives = {
      {"AllReduce", Collective::kAllReduce},
      {"AllGather", Collective::kAllGather},
      {"ReduceScatter", Collective::kReduceScatter}};
  const std::vector<Row> rows = tables();
  EXPECT_EQ(rows.size(), 72);
  for (const Row& row : rows) {
    const Tuning own = tuning(absl::StrCat(clusters.at(row.cluster), ",nccl=", row.version));
    size_t found = 0;
    for (const Algorithm algorithm : kAlgorithms) {
      for (const Protocol protocol : kProtocols) {
        const auto& entry = own.entry(collectives.at(row.collective), algorithm, protocol);
        const std::string name = absl::StrCat(to_string(algorithm), "/", to_string(protocol));
        const auto expected = row.entries.find(name);
        if (expected == row.entries.end()) {
          EXPECT_EQ(entry.gb_per_second, 0) << row.version << row.cluster << row.collective << name;
          continue;
        }
        ++found;
        // The figures are rounded.
        const auto& [latency, bandwidth] = expected->second;
        EXPECT_NEAR(entry.latency_us, latency, 0.0051 + 1e-5 * latency)
            << row.version << " " << row.cluster << " " << row.collective << " " << name;
        EXPECT_NEAR(entry.gb_per_second, bandwidth, 0.0051 + 1e-5 * bandwidth)
            << row.version << " " << row.cluster << " " << row.collective << " " << name;
      }
    }
    EXPECT_EQ(found, row.entries.size()) << row.version << row.cluster << row.collective;
  }
}

// What NCCL 2.19.3 itself printed for 2 x 8 H100 with one channel of 20 GB/s:
// github.com/NVIDIA/nccl/issues/1519. LL128 and the bandwidth of trees were off there.
TEST(Model, PrintsWhatNcclPrinted) {
  const Machine machine = {.version = 21903, .generation = Generation::kHopper};
  const Node node = {8, 1};
  const Graph one = {.channels = 1, .in_node = 20, .between_nodes = 20};
  const Tuning tuning(machine, {.ranks = 16, .nodes = 2, .kinds = absl::MakeConstSpan(&node, 1)},
                      {.ring = one, .tree = one, .rings_are_alike = true, .channels = 2});
  const auto expect = [&](Collective collective, Algorithm algorithm,
                          const std::vector<double>& latencies,
                          const std::vector<double>& bandwidths) {
    for (size_t p = 0; p < latencies.size(); ++p) {
      const auto& entry = tuning.entry(collective, algorithm, kProtocols[p]);
      EXPECT_NEAR(entry.latency_us, latencies[p], 0.051) << to_string(algorithm) << p;
      if (bandwidths[p] > 0) {
        EXPECT_NEAR(entry.gb_per_second, bandwidths[p], 0.051) << to_string(algorithm) << p;
      }
    }
  };
  expect(Collective::kBroadcast, Algorithm::kRing, {9.3, 18.0, 22.4}, {5.0, 0, 20.0});
  expect(Collective::kAllGather, Algorithm::kRing, {23.3, 44.6, 70.0}, {5.3, 0, 21.3});
  expect(Collective::kAllReduce, Algorithm::kTree, {25.2, 48.5, 448.0}, {0, 0, 0});
  expect(Collective::kAllReduce, Algorithm::kRing, {43.4, 79.4}, {2.7, 0});
}

// ---- Choice.

// Public benchmarks of 8 H200 and 8 B200 with NCCL 2.27.7: ml-engineering, network/README.md.
TEST(Model, ChoosesAsNcclDoes) {
  const Tuning h200 = tuning("1x8:h200,nccl=2.27.7");
  for (int64_t bytes = 1 << 10; bytes <= 1 << 20; bytes *= 2) {
    const auto choice = h200.choose(Collective::kAllReduce, bytes);
    EXPECT_EQ(choice.algorithm, Algorithm::kRing) << bytes;
    EXPECT_EQ(choice.protocol, Protocol::kLl) << bytes;
  }
  for (int64_t bytes = 2 << 20; bytes <= int64_t{4} << 30; bytes *= 2) {
    EXPECT_EQ(h200.choose(Collective::kAllReduce, bytes).algorithm, Algorithm::kNvls) << bytes;
  }
  const auto of_large = [](const std::string& device, int gpus) {
    const auto spec = ClusterSpec::parse(absl::StrCat("1x8:", device, ",nccl=2.27.7"));
    const Node node = {gpus, gpus};
    return Tuning(machine_of(*spec),
                  {.ranks = gpus, .nodes = 1, .kinds = absl::MakeConstSpan(&node, 1)})
        .choose(Collective::kAllReduce, int64_t{4} << 30)
        .algorithm;
  };
  EXPECT_EQ(of_large("h200", 4), Algorithm::kRing);
  for (int gpus : {5, 6, 7, 8}) EXPECT_EQ(of_large("h200", gpus), Algorithm::kNvls) << gpus;
  for (int gpus : {4, 5}) EXPECT_EQ(of_large("b200", gpus), Algorithm::kRing) << gpus;
  for (int gpus : {6, 7, 8}) EXPECT_EQ(of_large("b200", gpus), Algorithm::kNvls) << gpus;
}

TEST(Model, ReducesInSwitchesOnlyWhatTheyCanReduce) {
  constexpr int64_t kLarge = 1 << 30;
  const Tuning node = tuning("1x8:h100");
  const Tuning::Choice fastest = node.choose(Collective::kAllReduce, kLarge);
  EXPECT_EQ(fastest.algorithm, Algorithm::kNvls);
  for (const Reduction reduction : {Reduction::kOnDevices, Reduction::kScaled}) {
    const Tuning::Choice other = node.choose(Collective::kAllReduce, kLarge, reduction);
    EXPECT_EQ(other.algorithm, Algorithm::kRing);
    EXPECT_GT(other.us, fastest.us);
    const auto us = [&](Collective collective) {
      return node.us(collective, Algorithm::kNvls, Protocol::kSimple, kLarge, reduction);
    };
    EXPECT_FALSE(us(Collective::kReduceScatter));
    EXPECT_TRUE(us(Collective::kAllGather));
  }
}

// A rank on each node: PAT from 2.23 on, but not for averages.
TEST(Model, UsesPatWithOneRankANode) {
  const auto choose = [](const char* version, Reduction reduction) {
    const auto spec = ClusterSpec::parse(absl::StrCat("4x8:h100,nccl=", version));
    const Node node = {1, 1};
    const Tuning tuning(machine_of(*spec),
                        {.ranks = 4, .nodes = 4, .kinds = absl::MakeConstSpan(&node, 1)});
    EXPECT_FALSE(tuning.us(Collective::kAllReduce, Algorithm::kPat, Protocol::kSimple, 1024));
    return tuning.us(Collective::kReduceScatter, Algorithm::kPat, Protocol::kSimple, 1 << 20,
                     reduction);
  };
  EXPECT_FALSE(choose("2.22.3", Reduction::kInSwitches));
  EXPECT_TRUE(choose("2.23.4", Reduction::kInSwitches));
  EXPECT_TRUE(choose("2.28.9", Reduction::kOnDevices));
  EXPECT_FALSE(choose("2.28.9", Reduction::kScaled));
  // Base, two levels of a tree at 14 us / 3.5, and 2.8 us a rank; 48 GB/s, of which 75 % are
  // reached.
  EXPECT_NEAR(*choose("2.28.9", Reduction::kInSwitches),
              8 + 2 * 14 / 3.5 + 4 * 2.8 + (1 << 20) / (0.75 * 48e3), 1e-6);
}

// The latency of a ring over several nodes is 1.4 times that of the table from 64 bytes on for each
// rank and channel, and nothing else has such a limit.
TEST(Model, HasThePlateauOfLargeRingsByBytesOfARankAndChannel) {
  constexpr double kPlateau = 1.4;
  for (const char* cluster : {"2x8:h100", "4x8:a100-80"}) {
    const Tuning own = tuning(cluster);
    const int64_t ranks = cluster[0] == '2' ? 16 : 32;
    const int64_t limit =
        64 * ranks * own.channels(Algorithm::kRing, Protocol::kSimple, int64_t{1} << 40);
    // What the table has, without the bytes.
    const auto latencies = [&](const Tuning& tuning, Collective collective, Protocol protocol,
                               int64_t bytes) {
      const auto& entry = tuning.entry(collective, Algorithm::kRing, protocol);
      const double us = *tuning.us(collective, Algorithm::kRing, protocol, bytes);
      return (us - static_cast<double>(bytes) / (1000 * entry.gb_per_second)) / entry.latency_us;
    };
    const auto all_reduce = [&](int64_t bytes) {
      return latencies(own, Collective::kAllReduce, Protocol::kSimple, bytes);
    };
    EXPECT_NEAR(all_reduce(1), 1, 1e-9) << cluster;
    EXPECT_NEAR(all_reduce(limit / 2), 1, 1e-9) << cluster;
    EXPECT_NEAR(all_reduce(limit - 1), 1, 1e-9) << cluster;
    EXPECT_NEAR(all_reduce(limit), kPlateau, 1e-9) << cluster;
    EXPECT_NEAR(all_reduce(16 * limit), kPlateau, 1e-9) << cluster;
    for (const Protocol protocol : {Protocol::kLl, Protocol::kLl128}) {
      EXPECT_NEAR(latencies(own, Collective::kAllReduce, protocol, limit), 1, 1e-9) << cluster;
    }
    EXPECT_NEAR(latencies(own, Collective::kAllGather, Protocol::kSimple, limit), 1, 1e-9);
    EXPECT_NEAR(latencies(tuning("1x8:h100"), Collective::kAllReduce, Protocol::kSimple, limit), 1,
                1e-9);
  }
}

// Bandwidths of trees are corrected by the size's power of two, up to the last one of the list.
TEST(Model, CorrectsTreesByTheSizeOfMessages) {
  const Tuning own = tuning("2x8:h100");
  const auto& entry = own.entry(Collective::kAllReduce, Algorithm::kTree, Protocol::kSimple);
  const auto correction = [&](int64_t bytes) {
    const double us = *own.us(Collective::kAllReduce, Algorithm::kTree, Protocol::kSimple, bytes);
    return static_cast<double>(bytes) / (1000 * (us - entry.latency_us)) / entry.gb_per_second;
  };
  EXPECT_NEAR(correction((64 << 7) - 1), 0.9, 1e-6);
  EXPECT_NEAR(correction(64 << 7), 0.8, 1e-6);
  EXPECT_NEAR(correction((64 << 15) - 1), 0.5, 1e-6);
  EXPECT_NEAR(correction(64 << 15), 0.6, 1e-6);
  EXPECT_NEAR(correction((int64_t{64} << 23) - 1), 0.9, 1e-6);
  EXPECT_NEAR(correction(int64_t{64} << 23), 1, 1e-6);
}

// ---- Channels.

TEST(Model, SmallMessagesTakeFewChannels) {
  const Tuning node = tuning("1x8:h100");
  const auto ring = [&](Protocol protocol, int64_t bytes) {
    return node.channels(Algorithm::kRing, protocol, bytes);
  };
  EXPECT_EQ(ring(Protocol::kLl, 1), 1);
  EXPECT_EQ(ring(Protocol::kLl, 64 << 10), 2);
  EXPECT_EQ(ring(Protocol::kLl, 24 * 512 * 64 - 1), 23);
  EXPECT_EQ(ring(Protocol::kLl, 24 * 512 * 64), 24);
  EXPECT_EQ(ring(Protocol::kLl128, 24 * 640 * 8), 24);
  EXPECT_EQ(ring(Protocol::kSimple, int64_t{1} << 40), 24);
  EXPECT_EQ(node.channels(Algorithm::kNvls, Protocol::kSimple, 1), 16);
  EXPECT_EQ(tuning("1x8:b200").channels(Algorithm::kNvls, Protocol::kSimple, 1), 24);
}

// ---- What holds for all versions and shapes.

TEST(Model, IsAboveItsLinksInEveryVersion) {
  for (const char* device : {"a100-80", "h100", "b200"}) {
    for (const char* version : {"2.19.3", "2.20.5", "2.21.5", "2.22.3", "2.23.4", "2.24.3",
                                "2.25.1", "2.26.2", "2.27.3", "2.27.5", "2.27.7", "2.28.3",
                                "2.28.7", "2.28.9", "2.29.2", "2.29.7", "2.30.3", "2.30.7"}) {
      for (const int nodes : {1, 2, 3, 64}) {
        const auto spec = ClusterSpec::parse(absl::StrCat(nodes, "x8:", device, ",nccl=", version));
        if (!spec.ok()) {  // Older than Blackwell.
          EXPECT_STREQ(device, "b200");
          continue;
        }
        const Machine machine = machine_of(*spec);
        for (const int gpus : {1, 2, 3, 4, 8}) {
          if (nodes * gpus == 1) continue;
          const Node node = {gpus, gpus};
          const Tuning tuning(
              machine,
              {.ranks = nodes * gpus, .nodes = nodes, .kinds = absl::MakeConstSpan(&node, 1)});
          const double links = nodes == 1 ? machine.nvlink : gpus * machine.nic;
          for (const Collective collective : kCollectives) {
            const auto choice = tuning.choose(collective, int64_t{4} << 30);
            const double ideal_us = static_cast<double>(int64_t{4} << 30) / (1000 * links);
            // NVLS reduces in the switch, and NVLSTree crosses a NIC but once.
            EXPECT_GT(choice.us, 0.4 * ideal_us) << device << version << nodes << gpus;
            EXPECT_LT(choice.us, 12 * ideal_us) << device << version << nodes << gpus;
            EXPECT_GT(choice.channels, 0);
            EXPECT_GT(tuning.choose(collective, 1).us, 5);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace accelerate::simulator::nccl
