/// Tests that run on several simulated topologies, one after the other in one process.
///
///   TOPOLOGY_SUITE(Gather, .also = {"1x3"});
///
///   TEST_P(Gather, GivesEveryRankTheSameValues) {
///     Cluster cluster = make_cluster({.seed = 4});
///     cluster.run_on_every_rank([](Rank& rank) { ... });
///   }
///
/// Each test runs once per shape of the list, under a name that ends in the shape: the test above
/// is On/Gather.GivesEveryRankTheSameValues/1x3. ACCELERATE_TEST_TOPOLOGIES chooses the list:
///
///   "short"            the shapes of every test run (kShortTopologies); the default
///   "all"              the shapes of ci/sim_sweep.sh (kAllTopologies)
///   "2x4 4x2:h100"     these shapes
///
/// Run n of `--runs_per_test` adds n - 1 to the seed of each cluster, so that the first run has the
/// seeds of the source. ACCELERATE_TEST_SEED=k gives all clusters the seed k instead.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "simulator/cluster/cluster.h"

namespace accelerate::simulator {

/// The shapes that `.ci/run` takes: alone, a node, several nodes, and named hardware.
inline constexpr char kShortTopologies[] = "1x1 1x2 2x2 2x2:h100";

/// The shapes that a sweep takes.
inline constexpr char kAllTopologies[] =
    "1x1 1x2 1x3 1x8 2x1 2x2 2x4 3x2 4x2 1x1:h100 1x2:h100 1x3:h100 2x2:h100 2x4:h100 2x4:a100 "
    "1x3:mi300x 2x3:ascend910b tpu-v4:2x2x1";

/// The seeds of a test that repeats its clusters under several schedules. They are the source's:
/// make_cluster() and seed_of_run() add the run's.
inline constexpr uint64_t kSeeds[] = {1, 2, 3, 4, 5};

/// Where the ranks of a suite's tests compute.
enum class Hardware {
  kAny,    // Whatever the list names.
  kNoTpu,  // DDP averages gradients; on TPUs the optimizer's step does.
  kNone,   // Ranks that compute on the CPU.
  kGpu,    // CUDA's or ROCm's devices; shapes without hardware get h100s.
};

/// On which shapes a suite runs.
struct Shapes {
  /// Beside those of the short and of the long list.
  std::vector<std::string> also = {};
  /// Leaves out shapes with fewer or more ranks; `also` is not concerned.
  int min_ranks = 1;
  int max_ranks = 1 << 20;
  Hardware hardware = Hardware::kAny;
};

/// The shapes of the chosen list that `shapes` admits, each once.
/// Errors: c10::ValueError naming a shape that is none.
std::vector<std::string> topologies(const Shapes& shapes);

/// The shape as part of a test's name: "2x2:h100" gives "2x2_h100".
std::string topology_name(const ::testing::TestParamInfo<std::string>& info);

/// The seed that a cluster has in this run where the source says `seed`.
/// Errors: c10::ValueError if an environment variable is not a number.
uint64_t seed_of_run(uint64_t seed);

/// The fixture of a topology suite.
class TopologyTest : public ::testing::TestWithParam<std::string> {
 public:
  /// A cluster of the test's shape with `options`; the seed is seed_of_run(options.seed).
  static Cluster make_cluster(ClusterOptions options = {});

  /// The test's shape, such as "2x2:h100".
  static const std::string& topology() { return GetParam(); }
  static int world_size();
  static bool has_devices();
};

}  // namespace accelerate::simulator

/// Declares a suite of TEST_P that runs on the shapes described by the fields of a Shapes.
#define TOPOLOGY_SUITE(suite, ...)                                                        \
  class suite : public ::accelerate::simulator::TopologyTest {};                          \
  GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(suite);                                   \
  INSTANTIATE_TEST_SUITE_P(                                                               \
      On, suite, ::testing::ValuesIn(::accelerate::simulator::topologies({__VA_ARGS__})), \
      ::accelerate::simulator::topology_name)
