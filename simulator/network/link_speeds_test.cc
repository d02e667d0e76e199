#include "simulator/network/link_speeds.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "simulator/network/flows.h"
#include "simulator/network/network.h"
#include "simulator/network/shared_links.h"

namespace accelerate::simulator {
namespace {

constexpr int kRanks = 4;
constexpr double kEver = LinkSpeeds::kNever;

// Two nodes with links and NICs of one byte a nanosecond, so that bytes are nanoseconds.
ClusterSpec unit_cluster() {
  ClusterSpec spec{.num_nodes = 2, .ranks_per_node = kRanks, .device = DeviceModel{.name = "unit"}};
  spec.node_link = {.bytes_per_second = 1e9, .latency_ns = 0};
  spec.nic = {.bytes_per_second = 1e9, .latency_ns = 0};
  spec.nics_per_node = kRanks;
  return spec;
}

LinkSpeeds::Change of_nic(int rank, double from_ns, double until_ns, double part) {
  LinkSpeeds::Change change{.text = "it",
                            .ranks = {rank},
                            .nics = {rank},
                            .from_ns = from_ns,
                            .until_ns = until_ns,
                            .part = part};
  change.links[kNicOut] = change.links[kNicIn] = true;
  return change;
}

LinkSpeeds::Change of_node_links(int rank, double from_ns, double until_ns, double part) {
  LinkSpeeds::Change change{
      .text = "it", .ranks = {rank}, .from_ns = from_ns, .until_ns = until_ns, .part = part};
  change.links[kNodeOut] = change.links[kNodeIn] = true;
  return change;
}

TEST(Change, HoldsFromItsBeginningToItsEnd) {
  const LinkSpeeds::Change change = of_nic(0, 100, 500, 0.25);
  EXPECT_EQ(change.left(99), 1);
  EXPECT_EQ(change.left(100), 0.25);
  EXPECT_EQ(change.left(499), 0.25);
  EXPECT_EQ(change.left(500), 1);
  EXPECT_EQ(change.changes_ns(0), 100);
  EXPECT_EQ(change.changes_ns(100), 500);
  EXPECT_EQ(change.changes_ns(500), kEver);
}

TEST(Change, FlapsInHalvesOfItsPeriod) {
  LinkSpeeds::Change change = of_nic(0, 100, 1000, 0);
  change.period_ns = 100;
  EXPECT_EQ(change.left(100), 0);
  EXPECT_EQ(change.changes_ns(100), 150);
  EXPECT_EQ(change.left(150), 1);
  EXPECT_EQ(change.changes_ns(150), 200);
  EXPECT_EQ(change.left(200), 0);
  EXPECT_EQ(change.changes_ns(960), 1000);
}

TEST(Change, FallsInSteps) {
  LinkSpeeds::Change change = of_nic(0, 0, kEver, 0.5);
  change.falls_ns = 640;
  EXPECT_EQ(change.left(0), 1);
  EXPECT_EQ(change.changes_ns(0), 10);
  EXPECT_EQ(change.left(320), 0.75);
  EXPECT_EQ(change.left(640), 0.5);
  EXPECT_EQ(change.changes_ns(640), kEver);
}

// Collectives over the NICs of ranks 0 and 4, which are on two nodes.
class Slow : public ::testing::Test {
 protected:
  SharedLinks::Interval add(int group, int64_t alone_ns, double busy = 1,
                            std::vector<int> ranks = {0, 4}) {
    std::vector<SharedLinks::Member> members;
    for (const int rank : ranks) {
      members.push_back({.rank = rank, .bytes = {.nic_out = busy * static_cast<double>(alone_ns)}});
    }
    return links_.add(group, /*ready_ns=*/0, alone_ns, members);
  }

  LinkSpeeds speeds_{unit_cluster()};
  SharedLinks links_{unit_cluster(), &speeds_};
};

TEST_F(Slow, ACollectiveGoesOnAtTheSpeedThatThereIs) {
  speeds_.add(of_nic(0, 100, 500, 0.25));
  EXPECT_EQ(add(0, 200).end_ns, 500) << "100 before, and 100 in four times the time";
  EXPECT_EQ(add(1, 200, 1, {1, 5}).end_ns, 200) << "over other NICs";
}

TEST_F(Slow, WhoNeedsLessIsSlowedLess) {
  speeds_.add(of_nic(0, 100, 500, 0.25));
  EXPECT_EQ(add(0, 400, 0.5).end_ns, 600) << "at half its pace from 100 to 500";
}

TEST_F(Slow, TwoShareWhatIsLeft) {
  speeds_.add(of_nic(0, 0, kEver, 0.5));
  EXPECT_EQ(add(0, 100).end_ns, 200);
  EXPECT_EQ(add(1, 100).end_ns, 400);
}

TEST_F(Slow, ACollectiveWaitsForALinkThatIsDown) {
  speeds_.add(of_nic(4, 100, 500, 0));
  EXPECT_EQ(add(0, 200).end_ns, 600);
}

TEST_F(Slow, AFlappingLinkCarriesHalf) {
  LinkSpeeds::Change change = of_nic(0, 0, kEver, 0);
  change.period_ns = 20;
  speeds_.add(change);
  EXPECT_EQ(add(0, 1000).end_ns, 2000);
}

// What the first one loses while the link is up it gets when the link is up again.
TEST_F(Slow, TwoShareAFlappingLink) {
  LinkSpeeds::Change change = of_nic(0, 0, kEver, 0);
  change.period_ns = 20;
  speeds_.add(change);
  EXPECT_EQ(add(0, 1000).end_ns, 2000);
  EXPECT_NEAR(static_cast<double>(add(1, 1000).end_ns), 4000, 1);
  EXPECT_NEAR(static_cast<double>(add(0, 10).start_ns), 4000, 1);
}

TEST_F(Slow, ACollectiveOverALinkThatStaysDownNeverEnds) {
  speeds_.add(of_nic(0, 100, kEver, 0));
  EXPECT_EQ(add(0, 100).end_ns, 100);
  EXPECT_EQ(add(0, 100).end_ns, SharedLinks::kNever);
  EXPECT_EQ(add(0, 100).end_ns, SharedLinks::kNever) << "nor does the one behind it";
  EXPECT_EQ(add(1, 100, 1, {1, 5}).end_ns, 100);
  EXPECT_EQ(speeds_.down(200), std::vector<std::string>{"it"});
}

TEST_F(Slow, SeveralChangesOfALinkActTogether) {
  speeds_.add(of_nic(0, 0, kEver, 0.5));
  speeds_.add(of_nic(0, 0, 200, 0.5));
  EXPECT_EQ(add(0, 100).end_ns, 300) << "a quarter until 200, and half from then on";
  speeds_.add(of_nic(1, 0, kEver, 0.5));
  speeds_.add(of_nic(5, 0, kEver, 0.25));
  EXPECT_EQ(add(1, 100, 1, {1, 5}).end_ns, 400) << "by the slower one of two NICs";
}

// Links that come back, or are up now and then, are not what a run hangs for.
TEST(LinkSpeeds, NameTheLinksThatStayDown) {
  LinkSpeeds speeds(unit_cluster());
  LinkSpeeds::Change stays = of_nic(0, 100, kEver, 0), returns = of_nic(1, 100, 500, 0);
  LinkSpeeds::Change flaps = of_nic(2, 100, kEver, 0), slow = of_nic(3, 100, kEver, 0.5);
  stays.text = "stays";
  returns.text = "returns";
  flaps.text = "flaps";
  flaps.period_ns = 1000;
  for (const LinkSpeeds::Change& each : {stays, returns, flaps, slow}) speeds.add(each);
  EXPECT_EQ(speeds.down(50), std::vector<std::string>());
  EXPECT_EQ(speeds.down(200), std::vector<std::string>{"stays"});
}

TEST(LinkSpeeds, TouchWhatCrossesTheirLinksWhileTheyLast) {
  LinkSpeeds speeds(unit_cluster());
  speeds.add(of_nic(0, 100, 500, 0.5));
  const auto touches = [&](int rank, const LinkBytes& bytes, double from_ns, double to_ns) {
    return speeds.touching(rank, bytes, {}, from_ns, to_ns).size();
  };
  const LinkBytes over_nic = {.nic_out = 1};
  EXPECT_EQ(touches(0, over_nic, 0, 100), 0U);
  EXPECT_EQ(touches(0, over_nic, 0, 101), 1U);
  EXPECT_EQ(touches(0, over_nic, 200, 300), 1U);
  EXPECT_EQ(touches(0, over_nic, 499, 600), 1U);
  EXPECT_EQ(touches(0, over_nic, 500, 600), 0U);
  EXPECT_EQ(touches(1, over_nic, 200, 300), 0U);
  EXPECT_EQ(touches(0, {.node_out = 1}, 200, 300), 0U);
}

TEST_F(Slow, TheWayBetweenTwoNodesIsOfGroupsOnBoth) {
  LinkSpeeds::Change change = of_nic(0, 0, kEver, 0.5);
  change.ranks = change.nics = {0, 1, 2, 3, 4, 5, 6, 7};
  change.between = {0, 1};
  speeds_.add(change);
  EXPECT_EQ(add(0, 100).end_ns, 200);
  EXPECT_EQ(add(1, 100, 1, {1, 2}).end_ns, 100);
}

// Messages from rank 0 to rank 1, over the links of a node.
class Messages : public ::testing::Test {
 protected:
  SharedLinks::Interval add(int group, int64_t ready_ns, int64_t alone_ns) {
    const auto bytes = static_cast<double>(alone_ns);
    if (group < 0) {
      return links_.add(group, ready_ns, alone_ns,
                        std::vector<SharedLinks::Member>{{.rank = 0, .bytes = {.node_out = bytes}},
                                                         {.rank = 1, .bytes = {.node_in = bytes}}});
    }
    const LinkBytes both = {.node_out = bytes, .node_in = bytes};
    return links_.add(
        group, ready_ns, alone_ns,
        std::vector<SharedLinks::Member>{{.rank = 0, .bytes = both}, {.rank = 1, .bytes = both}});
  }

  const Network network_{unit_cluster()};
  LinkSpeeds speeds_{unit_cluster()};
  SharedLinks links_{network_.links(), &speeds_};
  Flows flows_{network_, &links_};
};

TEST_F(Messages, AMessageTakesWhatACollectiveLeaves) {
  EXPECT_EQ(add(0, 0, 100).end_ns, 100);
  flows_.start(0, 1, 100, 0);
  EXPECT_EQ(flows_.next()->at_ns, 150) << "half of the link until 100";
}

TEST_F(Messages, AMessageAndACollectiveSlowEachOther) {
  EXPECT_EQ(add(0, 0, 100).end_ns, 100);
  flows_.start(0, 1, 100, 0);
  EXPECT_EQ(add(-1, 0, 100).end_ns, 200);
  EXPECT_EQ(flows_.next()->at_ns, 200) << "the collective is on the link as long";
  EXPECT_EQ(add(0, 0, 10).start_ns, 200) << "what comes behind the collective";
}

TEST_F(Messages, ACollectiveThatComesLaterSlowsAMessageFromThenOn) {
  flows_.start(0, 1, 100, 0);
  EXPECT_EQ(flows_.next()->at_ns, 100);
  EXPECT_EQ(add(-1, 0, 100).end_ns, 100);
  EXPECT_EQ(add(0, 20, 40).end_ns, 100) << "at half its pace";
  EXPECT_EQ(flows_.next()->at_ns, 140);
  EXPECT_EQ(flows_.finish_next().at_ns, 140);
  links_.end_message(-1, std::vector<int>{0, 1}, 140);
  EXPECT_EQ(add(0, 140, 40).end_ns, 180);
}

TEST_F(Messages, TwoMessagesBesideACollectiveHaveAThirdEach) {
  EXPECT_EQ(add(0, 0, 300).end_ns, 300);
  flows_.start(0, 1, 100, 0);
  flows_.start(0, 1, 100, 0);
  EXPECT_EQ(flows_.finish_next().at_ns, 300);
  EXPECT_EQ(flows_.finish_next().at_ns, 300);
}

TEST_F(Messages, AMessageFollowsTheSpeedOfItsLink) {
  speeds_.add(of_node_links(0, 100, 500, 0.25));
  flows_.start(0, 1, 200, 0);
  EXPECT_EQ(flows_.next()->at_ns, 500);
}

TEST_F(Messages, AMessageStandsStillWhileItsLinkIsDown) {
  const size_t down = speeds_.add(of_node_links(1, 50, kEver, 0));
  flows_.start(0, 1, 100, 0);
  flows_.start(2, 3, 70, 0);
  EXPECT_EQ(flows_.finish_next().at_ns, 70) << "over other links";
  EXPECT_FALSE(flows_.next().has_value());
  speeds_.end(down, 400);
  EXPECT_EQ(flows_.next()->at_ns, 450);
}

TEST_F(Messages, AFlappingLinkCarriesHalfOfTheTime) {
  LinkSpeeds::Change change = of_node_links(0, 0, kEver, 0);
  change.period_ns = 20;
  speeds_.add(change);
  flows_.start(0, 1, 1000, 0);
  EXPECT_EQ(flows_.next()->at_ns, 2000);
}

TEST_F(Messages, AMessageAndACollectiveShareAFlappingLink) {
  LinkSpeeds::Change change = of_node_links(0, 0, kEver, 0);
  change.period_ns = 20;
  speeds_.add(change);
  EXPECT_EQ(add(0, 0, 1000).end_ns, 2000);
  flows_.start(0, 1, 1000, 0);
  EXPECT_NEAR(static_cast<double>(add(-1, 0, 1000).end_ns), 4000, 1);
  EXPECT_NEAR(static_cast<double>(flows_.next()->at_ns), 4000, 1);
}

TEST_F(Messages, TheWayBetweenNodesMayBeDownInOneDirection) {
  LinkSpeeds::Change change = of_nic(0, 0, kEver, 0);
  change.between = {0, 1};
  change.one_way = true;
  speeds_.add(change);
  flows_.start(0, 4, 100, 0);
  EXPECT_FALSE(flows_.next().has_value());
  const Flows::Id back = flows_.start(4, 0, 100, 0);
  EXPECT_EQ(flows_.finish_next().id, back);
}

// A NIC of two ranks: a collective of one of them demands of that rank's part.
TEST(SharedNics, LeaveMessagesWhatOneRankDoesNotUse) {
  ClusterSpec spec = unit_cluster();
  spec.nics_per_node = kRanks / 2;
  const Network network(spec);
  SharedLinks links(network.links());
  const auto end_of_message = [&] {
    Flows flows(network, &links);
    flows.start(0, 4, 100, 0);
    return flows.next()->at_ns;
  };
  const int64_t alone = end_of_message();
  // Half of what rank 0 has of the NIC, while the message crosses it behind its latency.
  EXPECT_EQ(links
                .add(0, alone - 100, 100,
                     std::vector<SharedLinks::Member>{{.rank = 0, .bytes = {.nic_out = 25}}})
                .end_ns,
            alone);
  EXPECT_EQ(end_of_message(), alone + 25) << "three quarters of the NIC until then";
}

// Each link of a route knows whose it is.
TEST(Network, NamesTheOwnersOfLinks) {
  const Network network(unit_cluster());
  const Network::Route near = network.route(0, 1);
  EXPECT_EQ(network.owners_of(near.links.at(0)).ranks, std::vector<int>{0});
  EXPECT_EQ(network.owners_of(near.links.at(0)).link, size_t{kNodeOut});
  EXPECT_EQ(network.owners_of(near.links.at(1)).ranks, std::vector<int>{1});
  EXPECT_EQ(network.owners_of(near.links.at(1)).link, size_t{kNodeIn});
  const Network::Route far = network.route(2, 6);
  EXPECT_EQ(network.owners_of(far.links.at(0)).ranks, std::vector<int>{2});
  EXPECT_EQ(network.owners_of(far.links.at(0)).link, size_t{kNicOut});
  EXPECT_EQ(network.owners_of(far.links.at(1)).ranks, std::vector<int>{6});
  EXPECT_EQ(network.owners_of(far.links.at(1)).nic, 6);
}

}  // namespace
}  // namespace accelerate::simulator
