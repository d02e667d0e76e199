#include "simulator/report/report_text.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/number_text.h"
#include "simulator/trace/step_shares.h"

namespace accelerate::simulator {
namespace {

// Parts that a line names; smaller ones are added up.
constexpr size_t kNamedShares = 5;

std::string percent(int64_t part, int64_t whole) {
  return absl::StrFormat("%.1f %%", whole > 0 ? 100.0 * part / whole : 0.0);
}

// The largest parts of a whole, which come first, with their names.
std::string largest_parts(const std::vector<std::pair<std::string, int64_t>>& parts,
                          int64_t whole) {
  std::vector<std::string> texts;
  int64_t named = 0;
  for (const auto& [name, part] : parts) {
    if (texts.size() == kNamedShares) break;
    texts.push_back(absl::StrCat(percent(part, whole), " ", name));
    named += part;
  }
  if (parts.size() > kNamedShares) {
    texts.push_back(absl::StrCat(percent(whole - named, whole), " others"));
  }
  return absl::StrJoin(texts, "; ");
}

// ---- The lines, each of which is empty where there is nothing to tell.

std::string time_line(const Trace& trace, const std::string& path) {
  int64_t total_ns = 0;
  int64_t communication_ns = 0;
  int64_t exposed_ns = 0;
  for (const RankSummary& rank : trace.ranks) {
    total_ns += rank.end_ns;
    communication_ns += rank.communication_ns;
    exposed_ns += rank.exposed_ns;
  }
  // The peak of tensors, or where a driver is modelled, of all that it shows.
  const auto peak_of = [](const RankSummary& rank) {
    return std::max(rank.memory_peak, rank.driver_peak);
  };
  const auto peak = std::ranges::max_element(trace.ranks, {}, peak_of);
  const char* of_what = peak->driver_peak > 0
                            ? ", peak memory of a device with its context and cache "
                            : ", peak memory of tensors ";
  return absl::StrCat(
      path, ": virtual time ", absl::StrFormat("%.4g s", 1e-9 * elapsed_ns(trace)), of_what,
      binary_byte_text(peak_of(*peak)), " of ", binary_byte_text(trace.memory_capacity), " (rank ",
      peak - trace.ranks.begin(), "), communication ", percent(communication_ns, total_ns),
      " of the time (", percent(exposed_ns, total_ns), " not hidden by computation)");
}

std::string path_line(const Trace& trace) {
  const std::optional<CriticalPath> path = critical_path(trace);
  if (!path) return "";
  const int64_t step_ns = path->end_ns - path->start_ns;
  std::vector<std::pair<std::string, int64_t>> parts;
  for (const PathShare& share : path->shares) {
    parts.emplace_back(path_label(trace, share), share.total_ns);
  }
  return absl::StrCat("critical path of the median step (", path->step + 1, "), ",
                      absl::StrFormat("%.4g ms", 1e-6 * static_cast<double>(step_ns)), ": ",
                      largest_parts(parts, step_ns));
}

std::string stages_line(const Trace& trace) {
  std::vector<std::string> parts;
  for (const StageShare& each : stage_shares(trace)) {
    parts.push_back(absl::StrCat("pp ", each.stage, " ",
                                 percent(each.bubble_ns, each.busy_ns + each.bubble_ns)));
  }
  if (parts.empty()) return "";
  return absl::StrCat("in the median step stages compute nothing for: ",
                      absl::StrJoin(parts, ", "));
}

std::string exchanges_line(const Trace& trace) {
  const std::optional<StepTimes> times = step_times(trace);
  std::vector<std::string> parts;
  for (const SequenceExchanges& each : sequence_exchanges(trace)) {
    parts.push_back(absl::StrCat(percent(each.exchange_ns, times->median_ns), " along ", each.axis,
                                 ", of it ", percent(each.exposed_ns, times->median_ns),
                                 " without a kernel"));
  }
  if (parts.empty()) return "";
  return absl::StrCat("in the median step ranks exchange parts of sequences for: ",
                      absl::StrJoin(parts, "; "));
}

std::string links_line(const Trace& trace) {
  const LinkSummary* const links = busiest_links(trace);
  if (links == nullptr) return "";
  const bool of_step = !trace.steps.empty();
  const double use = of_step ? links->step_use : links->use;
  const double worst = of_step ? links->worst_step_use : links->worst_use;
  return absl::StrCat("busiest links: ", to_string(links->kind), ", ",
                      absl::StrFormat("%.1f %%", 100 * use), " of their rate over ",
                      of_step ? "a step" : "the run", " (", links->worst, ": ",
                      absl::StrFormat("%.1f %%", 100 * worst), ")");
}

// What no simulated kernel was measured for.
std::string predicted_line(const Trace& trace) {
  if (trace.predicted_ns == 0) return "";
  int64_t total_ns = 0;
  for (const RankSummary& rank : trace.ranks) total_ns += rank.compute_ns;
  return absl::StrCat("compiled regions: ", percent(trace.predicted_ns, total_ns),
                      " of the devices' work, predicted as that of fused kernels");
}

// Modules that are alike together; none if the program named none.
std::string modules_line(const Trace& trace) {
  std::map<std::string, int64_t> sums;
  int64_t all = 0;
  for (const ModuleMemory& each : trace.peak_modules) {
    sums[module_pattern(each.module)] += total_bytes(each);
    all += total_bytes(each);
  }
  if (sums.empty() || (sums.size() == 1 && sums.begin()->first.empty())) return "";
  std::vector<std::pair<std::string, int64_t>> modules(sums.begin(), sums.end());
  std::ranges::stable_sort(modules, std::greater<>(), &std::pair<std::string, int64_t>::second);
  const auto nameless = std::ranges::find(modules, "", &std::pair<std::string, int64_t>::first);
  if (nameless != modules.end()) nameless->first = "no module";
  return absl::StrCat("memory at the peak by module (rank ", trace.peak_rank,
                      "): ", largest_parts(modules, all));
}

}  // namespace

std::vector<FailedRanks> failed_ranks(const RunFailure& failure) {
  std::vector<FailedRanks> rows;
  std::map<std::pair<std::string, std::string>, size_t> row_of;
  for (size_t rank = 0; rank < failure.ranks.size(); ++rank) {
    const RankAtFailure& each = failure.ranks[rank];
    const auto [found, is_new] = row_of.insert({{each.state, each.last_call}, rows.size()});
    if (is_new) rows.push_back({.at_failure = each});
    rows[found->second].ranks.push_back(static_cast<int>(rank));
  }
  return rows;
}

std::string path_label(const Trace& trace, const PathShare& share) {
  switch (share.part) {
    case PathPart::kCommunication:
      return absl::StrCat(to_string(share.part), ", ", trace.names[share.name], " of ",
                          trace.names[share.group]);
    case PathPart::kStraggler: return absl::StrCat("waiting for rank ", share.rank);
    default: return to_string(share.part);
  }
}

std::vector<std::string> report_lines(const Trace& trace, const std::string& directory) {
  const std::string path = absl::StrCat("report: ", directory, "/report.html");
  if (!models_time(trace)) return {absl::StrCat(path, " (time is not modelled)")};
  std::vector<std::string> lines = {
      time_line(trace, path), path_line(trace),      stages_line(trace), exchanges_line(trace),
      links_line(trace),      predicted_line(trace), modules_line(trace)};
  std::erase(lines, "");
  return lines;
}

}  // namespace accelerate::simulator
