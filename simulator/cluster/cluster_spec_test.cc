#include "simulator/cluster/cluster_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::simulator {
namespace {

using ::testing::HasSubstr;

TEST(ClusterSpec, ReadsNodesAndRanks) {
  auto spec = ClusterSpec::parse("2x4");
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(spec->num_nodes, 2);
  EXPECT_EQ(spec->ranks_per_node, 4);
  EXPECT_EQ(spec->world_size(), 8);
  EXPECT_EQ(spec->to_string(), "2x4");
}

TEST(ClusterSpec, PointsAtTheCharacter) {
  struct Case {
    const char* text;
    const char* expected;
  };
  for (const Case& c : {
           Case{"", "a number of nodes from 1 to 4096 at character 1"},
           Case{"x4", "a number of nodes from 1 to 4096 at character 1"},
           Case{"2", "'x' at character 2"},
           Case{"2*4", "'x' at character 2"},
           Case{"2x", "a number of ranks per node from 1 to 4096 at character 3"},
           Case{"2x0", "a number of ranks per node from 1 to 4096 at character 3"},
           Case{"2x4:warp", "the end at character 4\n  2x4:warp\n     ^"},
           Case{"-1x4", "a number of nodes"},
           Case{"64x128", "at most 4096 ranks in all"},
           Case{"99999999999x1", "a number of nodes"},
       }) {
    EXPECT_THAT(ClusterSpec::parse(c.text).status().message(), HasSubstr(c.expected)) << c.text;
  }
}

}  // namespace
}  // namespace accelerate::simulator
