#include "accelerate/runtime/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

using ::testing::HasSubstr;

// A clean slate: the variables of whoever runs the test must not leak in.
Environment with(std::initializer_list<std::pair<const char*, const char*>> variables) {
  Environment environment;
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"}) {
    environment.unset(name);
  }
  for (auto [name, value] : variables) environment.set(name, value);
  return environment;
}

TEST(Topology, IsOneRankWhenNothingIsSet) {
  auto topology = topology_from_environment(with({}));
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_EQ(topology->world_size, 1);
  EXPECT_EQ(topology->shape(), "1x1");
}

TEST(Topology, FillsNodesFromRankAndLocalWorldSize) {
  auto topology = topology_from_environment(
      with({{"RANK", "6"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "4"}}));
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_EQ(topology->node_rank, 1);
  EXPECT_EQ(topology->num_nodes, 2);
  EXPECT_EQ(topology->shape(), "2x4");
}

TEST(Topology, SurvivesExportAndImport) {
  Environment environment = with({});
  export_topology(Topology::uniform(5, 2, 3), environment);
  auto topology = topology_from_environment(environment);
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_EQ(topology->rank, 5);
  EXPECT_EQ(topology->local_rank, 2);
  EXPECT_EQ(topology->node_rank, 1);
  EXPECT_EQ(topology->num_nodes, 2);
}

TEST(Topology, NamesTheVariablesThatContradict) {
  struct Case {
    Environment environment;
    const char* expected;
  };
  for (const Case& c : {
           Case{with({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), "RANK=2 is not below WORLD_SIZE=2"},
           Case{with({{"RANK", "0"}}), "RANK is set but WORLD_SIZE is not"},
           Case{with({{"WORLD_SIZE", "4"}}), "WORLD_SIZE is set but RANK is not"},
           Case{with({{"RANK", "x"}, {"WORLD_SIZE", "2"}}), "RANK=\"x\" is not a number"},
           Case{with({{"RANK", "0"}, {"WORLD_SIZE", "0"}}), "WORLD_SIZE=0: must be positive"},
           Case{with({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}), "RANK=\"-1\""},
           Case{with({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "4"}}),
                "LOCAL_WORLD_SIZE=4 is above WORLD_SIZE=2"},
           Case{with({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "0"}}),
                "LOCAL_WORLD_SIZE=0: must be positive"},
           Case{with({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "2"}}),
                "LOCAL_RANK=2 is not below LOCAL_WORLD_SIZE=2"},
           Case{with({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"GROUP_RANK", "9"}}),
                "GROUP_RANK=9 is not below the number of nodes=1"},
           Case{with({{"RANK", "0"}, {"WORLD_SIZE", "99999999999"}}), "WORLD_SIZE=\"99999999999\""},
       }) {
    EXPECT_THAT(topology_from_environment(c.environment).status().message(), HasSubstr(c.expected));
  }
}

}  // namespace
}  // namespace accelerate
