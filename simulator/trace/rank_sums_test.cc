#include "simulator/trace/rank_sums.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "simulator/core/random.h"

namespace accelerate::simulator {
namespace {

constexpr size_t kPlenty = 1 << 20;

TEST(BusyTime, CountsCommunicationThatNoKernelHides) {
  BusyTime busy(kPlenty);
  busy.add_kernel({0, 100});
  busy.add_communication({50, 150});
  busy.add_kernel({120, 130});
  const BusyTime::Totals totals = busy.totals();
  EXPECT_EQ(totals.compute_ns, 110);
  EXPECT_EQ(totals.communication_ns, 100);
  EXPECT_EQ(totals.exposed_ns, 40);
}

TEST(BusyTime, CountsOverlappingIntervalsOnce) {
  BusyTime busy(kPlenty);
  busy.add_kernel({0, 100});
  busy.add_kernel({20, 60});  // another stream
  busy.add_communication({200, 300});
  busy.add_communication({250, 350});
  EXPECT_EQ(busy.totals().compute_ns, 100);
  EXPECT_EQ(busy.totals().communication_ns, 150);
  EXPECT_EQ(busy.totals().exposed_ns, 150);
}

TEST(BusyTime, DoesNotLetACopyHideCommunication) {
  BusyTime busy(kPlenty);
  busy.add_copy({0, 100});
  busy.add_communication({0, 100});
  EXPECT_EQ(busy.totals().compute_ns, 100);
  EXPECT_EQ(busy.totals().exposed_ns, 100);
}

TEST(BusyTime, IsIndifferentToEmptyIntervals) {
  BusyTime busy(kPlenty);
  busy.add_kernel({5, 5});
  busy.add_communication({7, 7});
  EXPECT_EQ(busy.totals().compute_ns, 0);
  EXPECT_EQ(busy.totals().communication_ns, 0);
}

TEST(BusyTime, CountsAPartOlderThanWhatIsSettledAsExposed) {
  BusyTime busy(4);
  for (int64_t at = 0; at < 1000; at += 10) busy.add_kernel({at, at + 5});
  busy.add_communication({0, 5});
  EXPECT_EQ(busy.totals().communication_ns, 5);
  EXPECT_EQ(busy.totals().exposed_ns, 5);
}

// The same intervals with few and with unlimited open ones, communication known late.
TEST(BusyTime, SettlesOldIntervalsWithoutChangingTheSum) {
  DeterministicRandom random(17);
  BusyTime small(64);
  BusyTime large(kPlenty);
  int64_t now = 0;
  std::vector<std::pair<int, Interval>> waiting;  // for so many kernels
  for (int kernel = 0; kernel < 20000; ++kernel) {
    now += static_cast<int64_t>(random.below(20));
    const Interval interval{now, now + static_cast<int64_t>(random.below(30))};
    for (BusyTime* busy : {&small, &large}) busy->add_kernel(interval);
    now = interval.end_ns;
    if (random.below(10) == 0) {
      waiting.push_back({kernel + 8, {now, now + static_cast<int64_t>(random.below(500))}});
    }
    while (!waiting.empty() && waiting.front().first <= kernel) {
      for (BusyTime* busy : {&small, &large}) busy->add_communication(waiting.front().second);
      waiting.erase(waiting.begin());
    }
  }
  EXPECT_EQ(small.totals().compute_ns, large.totals().compute_ns);
  EXPECT_EQ(small.totals().communication_ns, large.totals().communication_ns);
  EXPECT_EQ(small.totals().exposed_ns, large.totals().exposed_ns);
  EXPECT_GT(large.totals().exposed_ns, 0);
}

TEST(MemoryCurve, KeepsTheHighestAndTheLastOfOneInstant) {
  MemoryCurve curve(3, 100);
  curve.add(10, MemoryCategory::kParameters, 5);
  curve.add(10, MemoryCategory::kTemporaries, 90);
  curve.add(10, MemoryCategory::kTemporaries, -90);
  curve.add(10, MemoryCategory::kGradients, 2);
  ASSERT_EQ(curve.samples().size(), 2u);
  EXPECT_EQ(total_bytes(curve.samples()[0]), 95);
  EXPECT_EQ(total_bytes(curve.samples()[1]), 7);
  EXPECT_EQ(curve.samples()[1].rank, 3);
  EXPECT_EQ(total_bytes(curve.peak()), 95);
}

TEST(MemoryCurve, TellsTheCategoriesOfThePeakAfterTheyChanged) {
  MemoryCurve curve(0, 100);
  curve.add(10, MemoryCategory::kTemporaries, 5);
  curve.add(10, MemoryCategory::kTemporaries, -5);
  curve.add(10, MemoryCategory::kBuckets, 5);
  // Bytes at a later time do not change the peak.
  curve.add(20, MemoryCategory::kBuckets, -5);
  curve.add(20, MemoryCategory::kGradients, 5);
  EXPECT_EQ(curve.peak().at_ns, 10);
  EXPECT_EQ(curve.peak().bytes[static_cast<size_t>(MemoryCategory::kBuckets)], 5);
}

TEST(MemoryCurve, ThinsWithoutLosingThePeakTheEndOrTheOrder) {
  DeterministicRandom random(5);
  MemoryCurve curve(0, 64);
  int64_t bytes = 0;
  int64_t peak = 0;
  for (int64_t at = 0; at < 100000; at += 7) {
    const int64_t target = static_cast<int64_t>(random.below(1000000));
    curve.add(at, MemoryCategory::kActivations, target - bytes);
    bytes = target;
    peak = std::max(peak, bytes);
  }
  EXPECT_LE(curve.samples().size(), 64u);
  EXPECT_GE(curve.samples().size(), 16u);
  EXPECT_EQ(total_bytes(curve.peak()), peak);
  EXPECT_EQ(total_bytes(curve.samples().back()), bytes);
  int64_t highest = 0;
  int64_t before = 0;
  for (const MemorySample& sample : curve.samples()) {
    highest = std::max(highest, total_bytes(sample));
    EXPECT_GE(sample.at_ns, before);
    before = sample.at_ns;
  }
  EXPECT_EQ(highest, peak);
}

TEST(MemoryCurve, RecordsATimeThatGoesBackAtTheLatestTime) {
  MemoryCurve curve(0, 100);
  curve.add(10, MemoryCategory::kParameters, 5);
  curve.add(4, MemoryCategory::kParameters, 5);
  EXPECT_EQ(curve.samples().back().at_ns, 10);
  EXPECT_EQ(total_bytes(curve.samples().back()), 10);
}

TEST(ModuleSums, KeepThePeak) {
  MemoryCurve curve(0, 100);
  ModuleSums sums;
  const auto add = [&](int64_t at_ns, uint32_t module, MemoryCategory category, int64_t delta) {
    sums.add(module, category, delta, curve.add(at_ns, category, delta));
  };
  constexpr auto kActivations = static_cast<size_t>(MemoryCategory::kActivations);
  add(1, 1, MemoryCategory::kParameters, 100);
  add(2, 2, MemoryCategory::kActivations, 50);
  EXPECT_EQ(sums.at_peak()[2][kActivations], 50);
  add(3, 2, MemoryCategory::kActivations, -50);
  add(4, 3, MemoryCategory::kActivations, 40);
  ASSERT_EQ(sums.at_peak().size(), 3u);  // the peak is that of the time 2
  EXPECT_EQ(sums.at_peak()[2][kActivations], 50);
  add(5, 3, MemoryCategory::kActivations, 20);
  EXPECT_EQ(sums.at_peak()[2][kActivations], 0);
  EXPECT_EQ(sums.at_peak()[3][kActivations], 60);
}

}  // namespace
}  // namespace accelerate::simulator
