// The links of a group's collectives, which are worked out once for each kind and root.
#include "simulator/c10d/link_record.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "simulator/hardware/cluster_spec.h"
#include "simulator/network/link_use.h"
#include "simulator/network/network.h"

namespace accelerate::simulator {
namespace {

TEST(GroupLinks, AreThoseOfEachRoot) {
  const ClusterSpec spec = ClusterSpec::parse("1x4:h100").value();
  const Network network(spec);
  const std::vector<int> ranks = {0, 1, 2, 3};
  constexpr int64_t kBytes = int64_t{1} << 20;
  GroupLinks links;
  for (const CollectiveKind kind : {CollectiveKind::kGather, CollectiveKind::kScatter}) {
    const CollectiveAlgorithm algorithm = network.collective(kind, ranks, kBytes).algorithm;
    for (const int root : {0, 3, 0}) {
      const std::vector<LinkBytes> use = links.use(spec, kind, algorithm, ranks, root);
      ASSERT_EQ(use.size(), ranks.size());
      for (size_t member = 0; member < use.size(); ++member) {
        if (member == static_cast<size_t>(root)) continue;
        const LinkBytes &at_root = use[static_cast<size_t>(root)], &at_other = use[member];
        if (kind == CollectiveKind::kGather) {
          EXPECT_GT(at_root.node_in, at_other.node_in) << root << " " << member;
        } else {
          EXPECT_GT(at_root.node_out, at_other.node_out) << root << " " << member;
        }
      }
    }
  }
}

}  // namespace
}  // namespace accelerate::simulator
