#include "simulator/trace/trace.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace accelerate::simulator {

int64_t total_bytes(const ModuleMemory& memory) {
  return std::accumulate(memory.bytes.begin(), memory.bytes.end(), int64_t{0});
}

std::string module_pattern(const std::string& module) {
  std::vector<std::string> parts = absl::StrSplit(module, '.');
  for (std::string& part : parts) {
    if (!part.empty() && std::ranges::all_of(part, absl::ascii_isdigit)) part = "*";
  }
  return absl::StrJoin(parts, ".");
}

const LinkSummary* busiest_links(const Trace& trace) {
  const auto less = [](const LinkSummary& a, const LinkSummary& b) {
    return std::pair(a.worst_step_use, a.worst_use) < std::pair(b.worst_step_use, b.worst_use);
  };
  const auto busiest = std::ranges::max_element(trace.links, less);
  return busiest == trace.links.end() ? nullptr : &*busiest;
}

int num_executed(const Trace& trace) {
  if (trace.counts_as.empty()) return trace.world_size;
  int executed = 0;
  for (int rank = 0; rank < trace.world_size; ++rank) executed += trace.counts_as[rank] == rank;
  return executed;
}

bool models_time(const Trace& trace) { return !trace.device.empty(); }

std::string place_of(const Trace& trace, int rank) {
  std::string place;
  for (const TraceAxis& axis : trace.axes) {
    if (axis.coordinates.empty() || axis.coordinates[rank] < 0) continue;
    absl::StrAppend(&place, place.empty() ? "" : ", ", axis.name, " ", axis.coordinates[rank]);
  }
  return place;
}

int64_t elapsed_ns(const Trace& trace) {
  int64_t end = 0;
  for (const RankSummary& rank : trace.ranks) end = std::max(end, rank.end_ns);
  return end;
}

std::optional<StepTimes> step_times(const Trace& trace) {
  if (trace.steps.empty()) return std::nullopt;
  std::vector<int64_t> lengths;
  int64_t previous = 0;
  for (const TraceStep& step : trace.steps) {
    lengths.push_back(step.end_ns - previous);
    previous = step.end_ns;
  }
  StepTimes times{.steps = static_cast<int64_t>(lengths.size()), .first_ns = lengths.front()};
  // The first step also sets up optimizer state and buckets.
  const size_t left_out = lengths.size() > 1 ? 1 : 0;
  const auto first = lengths.begin() + static_cast<std::ptrdiff_t>(left_out);
  std::vector<int64_t> sorted(first, lengths.end());
  std::sort(sorted.begin(), sorted.end());
  times.shortest_ns = sorted.front();
  times.median_ns = sorted[(sorted.size() - 1) / 2];
  times.median_step = std::find(first, lengths.end(), times.median_ns) - lengths.begin();
  times.longest_ns = sorted.back();
  const auto count = static_cast<double>(sorted.size());
  double recomputed = 0;
  for (size_t i = left_out; i < trace.steps.size(); ++i) {
    times.mean_ns += static_cast<double>(lengths[i]) / count;
    times.flops += trace.steps[i].work.flops / count;
    recomputed += trace.steps[i].work.recomputed_flops / count;
    times.exposed_ns += static_cast<double>(trace.steps[i].exposed_ns) / count;
    for (size_t phase = 0; phase < kNumStepPhases; ++phase) {
      times.phase_ns[phase] += static_cast<double>(trace.steps[i].phase_ns[phase]) / count;
    }
  }
  const double peak =
      trace.peak_flops * trace.world_size * trace.devices_per_rank * times.mean_ns * 1e-9;
  if (peak > 0) {
    times.mfu = (times.flops - recomputed) / peak;
    times.hfu = times.flops / peak;
  }
  return times;
}

}  // namespace accelerate::simulator
