#include "simulator/report/level_of_detail.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "simulator/trace/rank_sums.h"

namespace accelerate::simulator {
namespace {

// The part of the budget that featured ranks share.
constexpr double kFeaturedShare = 0.4;
constexpr size_t kLeastPerTrack = 16;
constexpr size_t kLeastMemorySamples = 64;

// The median step; empty if the run has no steps.
Interval focus_of(const Trace& trace) {
  const std::optional<StepTimes> times = step_times(trace);
  if (!times) return {};
  const int64_t end_ns = trace.steps[times->median_step].end_ns;
  return {.start_ns = end_ns - times->median_ns, .end_ns = end_ns};
}

bool starts_in(const PageSlice& slice, Interval part) {
  return slice.start_ns >= part.start_ns && slice.start_ns < part.end_ns;
}

std::vector<PageTrack> all_tracks(const Trace& trace) {
  std::map<std::tuple<int, int, int>, PageTrack> by_place;
  for (const Slice& slice : trace.slices) {
    by_place[{slice.rank, slice.device, slice.stream}].slices.push_back(
        {.start_ns = slice.start_ns,
         .end_ns = slice.end_ns,
         .name = slice.name,
         .kind = slice.kind,
         .operation = slice.operation,
         .busy_ns = slice.end_ns - slice.start_ns});
  }
  std::vector<PageTrack> tracks;
  for (auto& [place, track] : by_place) {
    std::tie(track.rank, track.device, track.stream) = place;
    // Streams are in order already, unless a slice was recorded late.
    std::ranges::stable_sort(track.slices, {}, &PageSlice::start_ns);
    tracks.push_back(std::move(track));
  }
  return tracks;
}

// Merges several neighbouring slices into one.
PageSlice merged(const PageSlice* begin, const PageSlice* end) {
  if (end - begin == 1) return *begin;
  PageSlice all = *begin;
  all.operation = -1;
  all.count = 0;
  all.busy_ns = 0;
  std::map<std::pair<SliceKind, uint32_t>, int64_t> time_of;
  for (const PageSlice* slice = begin; slice != end; ++slice) {
    all.end_ns = std::max(all.end_ns, slice->end_ns);
    all.count += slice->count;
    all.busy_ns += slice->busy_ns;
    time_of[{slice->kind, slice->name}] += slice->busy_ns;
  }
  const auto most =
      std::ranges::max_element(time_of, {}, [](const auto& each) { return each.second; });
  std::tie(all.kind, all.name) = most->first;
  return all;
}

// Merges slices that are shorter than a window and start in the same window, except in the focus.
void thin(std::vector<PageSlice>& slices, int64_t window_ns, Interval focus) {
  std::vector<PageSlice> kept;
  for (size_t begin = 0; begin < slices.size();) {
    size_t end = begin + 1;
    const auto is_short = [&](const PageSlice& slice) {
      return slice.end_ns - slice.start_ns < window_ns && !starts_in(slice, focus);
    };
    if (is_short(slices[begin])) {
      const int64_t window = slices[begin].start_ns / window_ns;
      while (end < slices.size() && is_short(slices[end]) &&
             slices[end].start_ns / window_ns == window) {
        ++end;
      }
    }
    kept.push_back(merged(&slices[begin], &slices[end - 1] + 1));
    begin = end;
  }
  slices = std::move(kept);
}

void thin_to(std::vector<PageSlice>& slices, size_t budget, int64_t elapsed, Interval focus) {
  const auto in_focus = static_cast<size_t>(std::ranges::count_if(
      slices, [&](const PageSlice& slice) { return starts_in(slice, focus); }));
  if (in_focus > budget / 2) focus = {};
  // Each step doubles the window and merges the slices that the previous step left.
  int64_t window_ns = std::max<int64_t>(1, elapsed / static_cast<int64_t>(4 * budget));
  for (; slices.size() > budget && window_ns < 2 * elapsed; window_ns *= 2) {
    thin(slices, window_ns, focus);
  }
}

}  // namespace

std::vector<int> featured_ranks(const Trace& trace) {
  if (trace.ranks.empty()) return {};
  const auto highest = [&trace](int64_t RankSummary::* field) {
    return static_cast<int>(std::ranges::max_element(trace.ranks, {}, field) - trace.ranks.begin());
  };
  const std::set<int> ranks = {0, highest(&RankSummary::end_ns), highest(&RankSummary::exposed_ns),
                               highest(&RankSummary::memory_peak)};
  return {ranks.begin(), ranks.end()};
}

std::vector<std::vector<MemorySample>> page_memory(const Trace& trace, size_t budget,
                                                   size_t least) {
  const std::vector<int> featured = featured_ranks(trace);
  const int num_devices = std::max(1, trace.world_size * trace.devices_per_rank);
  const size_t part = std::max(kLeastMemorySamples, budget / num_devices);
  std::vector<std::vector<MemorySample>> curves;
  for (size_t begin = 0; begin < trace.memory.size();) {
    const auto [rank, device] = std::pair(trace.memory[begin].rank, trace.memory[begin].device);
    size_t end = begin;
    while (end < trace.memory.size() && trace.memory[end].rank == rank &&
           trace.memory[end].device == device) {
      ++end;
    }
    const bool is_featured = std::binary_search(featured.begin(), featured.end(), rank);
    MemoryCurve curve(rank, is_featured ? std::max(part, least) : part, device);
    for (size_t i = begin; i < end; ++i) curve.add(trace.memory[i]);
    curves.push_back(curve.samples());
    begin = end;
  }
  return curves;
}

std::string device_label(const Trace& trace, int rank, int device) {
  if (trace.devices_per_rank == 1) return "";
  return absl::StrCat("sim:", rank % trace.ranks_per_node * trace.devices_per_rank + device);
}

std::vector<PageTrack> page_tracks(const Trace& trace, size_t budget) {
  std::vector<PageTrack> tracks = all_tracks(trace);
  if (trace.slices.size() <= budget) return tracks;
  int64_t elapsed = 1;
  for (const Slice& slice : trace.slices) elapsed = std::max(elapsed, slice.end_ns);
  const Interval focus = focus_of(trace);
  const std::vector<int> featured = featured_ranks(trace);
  const auto is_featured = [&](const PageTrack& track) {
    return std::binary_search(featured.begin(), featured.end(), track.rank);
  };
  const size_t num_featured = std::count_if(tracks.begin(), tracks.end(), is_featured);
  // Tracks with few slices come first, so that busy tracks share the part of the budget that is
  // left.
  const auto share_out = [&](bool among_featured, size_t sum, size_t members) {
    std::vector<PageTrack*> order;
    for (PageTrack& track : tracks) {
      if (is_featured(track) == among_featured) order.push_back(&track);
    }
    std::ranges::stable_sort(order, {},
                             [](const PageTrack* track) { return track->slices.size(); });
    for (PageTrack* track : order) {
      const size_t part = std::max(kLeastPerTrack, sum / members--);
      thin_to(track->slices, part, elapsed, focus);
      sum -= std::min(sum, track->slices.size());
    }
    return sum;
  };
  const size_t for_featured =
      num_featured == tracks.size() ? budget : static_cast<size_t>(budget * kFeaturedShare);
  const size_t left = share_out(true, for_featured, num_featured);
  share_out(false, budget - for_featured + left, tracks.size() - num_featured);
  return tracks;
}

}  // namespace accelerate::simulator
