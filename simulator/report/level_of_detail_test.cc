#include "simulator/report/level_of_detail.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "simulator/testing/report/sample_trace.h"
#include "simulator/trace/rank_sums.h"

namespace accelerate::simulator {
namespace {

using ::testing::ElementsAre;

size_t slices_in(const std::vector<PageTrack>& tracks) {
  size_t sum = 0;
  for (const PageTrack& track : tracks) sum += track.slices.size();
  return sum;
}

// By rank and stream.
std::vector<int64_t> busy_times(const std::vector<PageTrack>& tracks) {
  std::vector<int64_t> sums;
  for (const PageTrack& track : tracks) {
    sums.push_back(0);
    for (const PageSlice& slice : track.slices) sums.back() += slice.busy_ns;
  }
  return sums;
}

TEST(LevelOfDetail, ShowsASmallTraceAsItIs) {
  const Trace trace = make_sample_trace({.ranks = 2, .steps = 1, .layers = 2});
  const std::vector<PageTrack> tracks = page_tracks(trace, 1'000'000);
  EXPECT_EQ(slices_in(tracks), trace.slices.size());
  ASSERT_FALSE(tracks.empty());
  EXPECT_EQ(tracks.front().rank, 0);
  EXPECT_EQ(tracks.front().stream, kHostStream);
  for (const PageTrack& track : tracks) {
    for (const PageSlice& slice : track.slices) EXPECT_EQ(slice.count, 1);
  }
}

TEST(LevelOfDetail, ThinsToTheBudgetAndKeepsEverySliceCounted) {
  const Trace trace = make_sample_trace({.ranks = 32, .steps = 3});
  const std::vector<PageTrack> all = page_tracks(trace, trace.slices.size());
  const std::vector<PageTrack> thin = page_tracks(trace, 4000);
  EXPECT_LE(slices_in(thin), 4000u);
  EXPECT_GE(slices_in(thin), 1500u);
  EXPECT_EQ(busy_times(thin), busy_times(all));
  int64_t counted = 0;
  for (const PageTrack& track : thin) {
    int64_t before = 0;
    for (const PageSlice& slice : track.slices) {
      counted += slice.count;
      EXPECT_GE(slice.start_ns, before);
      before = slice.start_ns;
    }
  }
  EXPECT_EQ(counted, static_cast<int64_t>(trace.slices.size()));
}

TEST(LevelOfDetail, KeepsTheSlicesOfTheMedianStep) {
  const Trace trace = make_sample_trace({.ranks = 2, .steps = 20});
  const int64_t step = step_times(trace)->median_step;
  const auto in_step = [&](int64_t start_ns) {
    return start_ns >= trace.steps[step - 1].end_ns && start_ns < trace.steps[step].end_ns;
  };
  const auto expected = std::count_if(trace.slices.begin(), trace.slices.end(),
                                      [&](const Slice& slice) { return in_step(slice.start_ns); });
  int64_t kept = 0;
  int64_t crowds = 0;
  for (const PageTrack& track : page_tracks(trace, trace.slices.size() / 2)) {
    for (const PageSlice& slice : track.slices) {
      if (slice.count > 1) ++crowds;
      if (slice.count == 1 && in_step(slice.start_ns)) ++kept;
    }
  }
  EXPECT_EQ(kept, expected);
  EXPECT_GT(crowds, 0);
}

TEST(LevelOfDetail, ThinsMemoryWithoutLosingPeaks) {
  const Trace trace = make_sample_trace({.ranks = 8, .steps = 3});
  const std::vector<std::vector<MemorySample>> curves = page_memory(trace, 1000, 200);
  ASSERT_EQ(curves.size(), 8u);
  for (size_t rank = 0; rank < curves.size(); ++rank) {
    EXPECT_LE(curves[rank].size(), 200u);
    int64_t peak = 0;
    for (const MemorySample& sample : curves[rank]) {
      EXPECT_EQ(sample.rank, static_cast<int>(rank));
      peak = std::max(peak, total_bytes(sample));
    }
    EXPECT_EQ(peak, trace.ranks[rank].memory_peak);
  }
}

TEST(LevelOfDetail, KeepsALongSliceAmongManyShortOnes) {
  Trace trace;
  trace.world_size = 1;
  trace.names = {"", "short", "long"};
  for (int64_t at = 0; at < 10'000; ++at) {
    if (at == 5000)
      trace.slices.push_back({.start_ns = at * 10, .end_ns = at * 10 + 9000, .name = 2});
    if (at < 5000 || at >= 5900) {
      trace.slices.push_back({.start_ns = at * 10, .end_ns = at * 10 + 5, .name = 1});
    }
  }
  const std::vector<PageTrack> tracks = page_tracks(trace, 100);
  EXPECT_LE(slices_in(tracks), 100u);
  int longs = 0;
  for (const PageSlice& slice : tracks[0].slices) {
    if (slice.name != 2) continue;
    ++longs;
    EXPECT_EQ(slice.count, 1);
    EXPECT_EQ(slice.end_ns - slice.start_ns, 9000);
  }
  EXPECT_EQ(longs, 1);
}

TEST(LevelOfDetail, ShowsFeaturedRanksInMoreDetail) {
  const Trace trace = make_sample_trace({.ranks = 32, .steps = 3});
  const std::vector<int> featured = featured_ranks(trace);
  double of_featured = 0, of_others = 0;
  for (const PageTrack& track : page_tracks(trace, trace.slices.size() / 4)) {
    const bool is_featured = std::ranges::binary_search(featured, track.rank);
    (is_featured ? of_featured : of_others) += static_cast<double>(track.slices.size());
  }
  const auto count = static_cast<double>(featured.size());
  EXPECT_GT(of_featured / count, 1.5 * of_others / (32 - count));
}

// A node numbers the devices of its ranks.
TEST(LevelOfDetail, NamesDevicesWithinTheirNode) {
  Trace trace;
  trace.ranks_per_node = 2;
  EXPECT_EQ(device_label(trace, 3, 0), "");
  trace.devices_per_rank = 2;
  EXPECT_EQ(device_label(trace, 0, 1), "sim:1");
  EXPECT_EQ(device_label(trace, 1, 1), "sim:3");
  EXPECT_EQ(device_label(trace, 2, 0), "sim:0");
  EXPECT_EQ(device_label(trace, 3, 1), "sim:3");
}

TEST(LevelOfDetail, FeaturesTheRanksThatPeopleLookAtFirst) {
  Trace trace;
  trace.ranks.resize(10);
  trace.ranks[3].end_ns = 10;
  trace.ranks[5].exposed_ns = 7;
  trace.ranks[8].memory_peak = 1;
  EXPECT_THAT(featured_ranks(trace), ElementsAre(0, 3, 5, 8));
  EXPECT_THAT(featured_ranks(Trace()), ElementsAre());
}

}  // namespace
}  // namespace accelerate::simulator
