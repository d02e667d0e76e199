#include "simulator/trace/memory_curve.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "simulator/core/random.h"

namespace accelerate::simulator {
namespace {

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

}  // namespace
}  // namespace accelerate::simulator
