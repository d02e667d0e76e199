#include "simulator/device/communication_share.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::simulator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

std::map<int, int64_t> learned(CommunicationShare& share, int64_t start_ns, int64_t end_ns,
                               double taken) {
  std::map<int, int64_t> ends;
  share.add_finished(start_ns, end_ns, taken, [&](int stream, int64_t ns) { ends[stream] = ns; });
  return ends;
}

TEST(CommunicationShare, SlowsLaterKernelsWhileTheCollectiveRuns) {
  CommunicationShare share;
  EXPECT_EQ(share.launch(0, 0, 0, 1000, true), 1000);
  share.call();
  EXPECT_THAT(learned(share, 1000, 3000, 0.2), IsEmpty());
  EXPECT_EQ(share.launch(0, 0, 1000, 800, true), 1000);   // wholly beside it
  EXPECT_EQ(share.launch(0, 0, 2000, 1600, true), 1800);  // 800 in 1000, then 800 alone
  EXPECT_EQ(share.launch(0, 0, 500, 900, true), 1000);    // 500 alone, then 400 in 500
  EXPECT_EQ(share.launch(0, 0, 3000, 700, true), 700);
}

TEST(CommunicationShare, AddsTheSharesOfSeveralCollectives) {
  CommunicationShare share;
  for (const int64_t end_ns : {1000, 2000}) {
    share.call();
    learned(share, 0, end_ns, 0.25);
  }
  // 500 in the first 1000, 750 in the second, 250 alone.
  EXPECT_EQ(share.launch(0, 0, 0, 1500, true), 2250);
  // However many there are, something is left for kernels.
  for (int i = 0; i < 9; ++i) {
    share.call();
    learned(share, 0, 10'000, 0.5);
  }
  EXPECT_EQ(share.launch(0, 0, 4000, 100, true), 1000);
}

TEST(CommunicationShare, SlowsEarlierKernelsWhenItIsKnown) {
  CommunicationShare share;
  share.launch(0, 0, 0, 1000, true);  // before the call
  share.call();
  EXPECT_EQ(share.launch(0, 0, 1000, 600, true), 600);
  EXPECT_EQ(share.launch(0, 0, 1600, 400, true), 400);
  EXPECT_EQ(share.launch(1, 0, 5000, 400, true), 400);
  EXPECT_EQ(share.launch(2, 0, 1900, 400, true), 400);
  // Stream 0 was busy for 500 of 1500 to 2500, stream 2 for 400; stream 1 later.
  EXPECT_THAT(learned(share, 1500, 2500, 0.2), ElementsAre(Pair(0, 2125), Pair(2, 2400)));
}

TEST(CommunicationShare, DelaysWhatIsBehindUpToTheNextGap) {
  CommunicationShare share;
  share.call();
  share.launch(0, 0, 0, 800, true);
  share.launch(0, 0, 900, 100, true);  // 100 ns after the first one
  // The first ends at 990, 40 of it alone, and the second begins then.
  EXPECT_THAT(learned(share, 0, 950, 0.2), ElementsAre(Pair(0, 1090)));
}

TEST(CommunicationShare, DoesNotSlowWhatIsBoundByMemory) {
  CommunicationShare share;
  share.call();
  share.launch(0, 0, 0, 1000, false);
  share.launch(0, 0, 1000, 500, true);
  share.launch(0, 0, 1500, 300, false);
  // The product in the middle takes 125 longer, and pushes the last one.
  EXPECT_THAT(learned(share, 0, 9000, 0.2), ElementsAre(Pair(0, 1925)));
  EXPECT_EQ(share.launch(0, 0, 2000, 100, false), 100);
}

TEST(CommunicationShare, TakesNoMoreThanItsOwnPart) {
  CommunicationShare share;
  share.call();
  share.launch(0, 0, 0, 9000, true);
  EXPECT_THAT(learned(share, 1000, 2000, 0.2), ElementsAre(Pair(0, 9200)));
}

TEST(CommunicationShare, ForgetsKernelsWithoutACollectiveThatIsStillUnknown) {
  CommunicationShare share;
  share.call();
  share.call();
  share.launch(0, 0, 0, 1000, true);
  EXPECT_THAT(learned(share, 0, 100, 0.5), ElementsAre(Pair(0, 1050)));
  EXPECT_THAT(learned(share, 100, 200, 0.5), ElementsAre(Pair(0, 1100)));
  EXPECT_THAT(learned(share, 0, 1000, 0.5), IsEmpty());
  // A collective of no channels, or one that failed, slows nothing.
  share.call();
  share.launch(0, 0, 2000, 1000, true);
  EXPECT_THAT(learned(share, 2000, 3000, 0), IsEmpty());
  EXPECT_EQ(share.launch(0, 2000, 2000, 100, true), 100);
}

// A program that never waits must not fill the host's memory.
TEST(CommunicationShare, KeepsABoundedPast) {
  CommunicationShare share;
  share.call();
  for (int i = 0; i < 100'000; ++i) share.launch(i % 2, 0, i, 1, true);
  EXPECT_THAT(learned(share, 0, 1000, 0.5), IsEmpty()) << "of the first ones";
}

}  // namespace
}  // namespace accelerate::simulator
