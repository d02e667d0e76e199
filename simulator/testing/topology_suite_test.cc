#include "simulator/testing/topology_suite.h"

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <c10/util/Exception.h>

#include "accelerate/platform/environment.h"

namespace accelerate::simulator {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsSupersetOf;

// Sets a variable of this process until the end of the scope.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name), before_(Environment().get(name)) {
    setenv(name, value, 1);
  }
  ~Variable() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }

 private:
  const char* const name_;
  const std::optional<std::string> before_;
};

constexpr char kTopologies[] = "ACCELERATE_TEST_TOPOLOGIES";

TEST(Topologies, AreTheShortListAndWhatTheSuiteAdds) {
  const Variable chosen(kTopologies, "short");
  EXPECT_THAT(topologies({}), ElementsAre("1x1", "1x2", "2x2", "2x2:h100"));
  EXPECT_THAT(topologies({.also = {"2x2", "1x3"}, .min_ranks = 2}),
              ElementsAre("1x2", "2x2", "2x2:h100", "1x3"));
  EXPECT_THAT(topologies({.also = {"1x5"}, .max_ranks = 1}), ElementsAre("1x1", "1x5"));
}

// Whoever names shapes wants those alone.
TEST(Topologies, ThatAreNamedAreAll) {
  const Variable chosen(kTopologies, "1x2 2x2");
  EXPECT_THAT(topologies({.also = {"1x3"}}), ElementsAre("1x2", "2x2"));
}

TEST(Topologies, HaveTheHardwareThatASuiteNeeds) {
  const Variable chosen(kTopologies, "1x2 1x2:h100 1x2:ascend910b tpu-v4:2x1x1 1x2:mi300x");
  EXPECT_THAT(topologies({.hardware = Hardware::kNone}), ElementsAre("1x2"));
  EXPECT_THAT(topologies({.hardware = Hardware::kGpu}), ElementsAre("1x2:h100", "1x2:mi300x"));
  EXPECT_THAT(topologies({.hardware = Hardware::kNoTpu}),
              ElementsAre("1x2", "1x2:h100", "1x2:ascend910b", "1x2:mi300x"));
}

TEST(Topologies, OfASweepIncludeThoseOfEveryRun) {
  const std::vector<std::string> usual = topologies({});
  const Variable chosen(kTopologies, "all");
  EXPECT_THAT(topologies({}), IsSupersetOf(usual));
  EXPECT_THAT(topologies({}), Contains("tpu-v4:2x2x1"));
}

TEST(Topologies, AnUnknownShapeIsAnError) {
  const Variable chosen(kTopologies, "2by4");
  EXPECT_THROW(topologies({}), c10::ValueError);
}

TEST(SeedOfRun, IsTheSourcesInTheFirstRun) {
  {
    const Variable run("TEST_RANDOM_SEED", "1");
    EXPECT_EQ(seed_of_run(4), 4);
  }
  {
    const Variable run("TEST_RANDOM_SEED", "50");
    EXPECT_EQ(seed_of_run(4), 53);
    const Variable given("ACCELERATE_TEST_SEED", "7");
    EXPECT_EQ(seed_of_run(4), 7);
  }
  const Variable wrong("TEST_RANDOM_SEED", "one");
  EXPECT_THROW(seed_of_run(4), c10::ValueError);
}

TOPOLOGY_SUITE(OnEachShape, .also = {"1x3"});

TEST_P(OnEachShape, RanksRun) {
  Cluster cluster = make_cluster({.seed = 3});
  EXPECT_EQ(cluster.seed(), seed_of_run(3));
  EXPECT_EQ(cluster.world_size(), world_size());
  cluster.run_on_every_rank([](Rank& rank) {
    EXPECT_EQ(rank.device() != nullptr, has_devices());
    rank.report("index", rank.index());
  });
  EXPECT_EQ(cluster.reports("index").size(), static_cast<size_t>(world_size()));
}

}  // namespace
}  // namespace accelerate::simulator
