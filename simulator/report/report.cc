#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "accelerate/base/fields.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/message_text.h"
#include "simulator/report/output_file.h"
#include "simulator/report/report.h"
#include "simulator/report/report_text.h"
#include "simulator/trace/critical_path.h"
#include "simulator/trace/step_shares.h"

namespace accelerate::simulator {

// What the file has of them under the fields' names, in its order.
ACCELERATE_FIELDS(RankSummary, end_ns, compute_ns, communication_ns, exposed_ns, memory_peak,
                  at_peak, flops, driver_peak, allocation_retries, launches)
ACCELERATE_FIELDS(StepTimes, first_ns, shortest_ns, median_ns, median_step, longest_ns, flops,
                  exposed_ns)
ACCELERATE_FIELDS(StepWork, operators, flops, bytes, launches, blocks, block_bytes)
ACCELERATE_FIELDS(StageShare, stage, ranks, busy_ns, bubble_ns)
ACCELERATE_FIELDS(LinkSummary, links, bytes_per_second, bytes, least_bytes, most_bytes, use,
                  worst_use, step_bytes, step_use, worst_step_use, worst, mean_busy_ns,
                  worst_busy_ns)
ACCELERATE_FIELDS(OperatorSummary, calls, total_ns, flops, bytes)
ACCELERATE_FIELDS(ModuleSummary, calls, total_ns, flops, bytes)
ACCELERATE_FIELDS(CollectiveSummary, ranks, calls, bytes, total_ns, shared_ns, bus_bytes)

namespace {

// An object with the fields as well.
template <typename Struct>
Json with_fields(Json object, const Struct& each) {
  visit_fields(each, [&object](const char* name, const auto& field) { object[name] = field; });
  return object;
}

// Numbers by the texts of an enumeration.
template <typename E, typename Numbers>
Json by_text(const Numbers& numbers) {
  Json object = Json::object();
  for (const E each : accelerate::values<E>()) {
    object[accelerate::to_string(each)] = numbers[static_cast<size_t>(each)];
  }
  return object;
}

Json path_of(const Trace& trace) {
  const std::optional<CriticalPath> path = critical_path(trace);
  if (!path) return nullptr;
  const auto share_of = [&trace](const PathShare& share) {
    Json entry = {
        {"part", to_string(share.part)}, {"ns", share.total_ns}, {"segments", share.segments}};
    if (share.part == PathPart::kCommunication) {
      entry["name"] = trace.names[share.name];
      entry["group"] = trace.names[share.group];
    }
    if (share.rank >= 0) entry["rank"] = share.rank;
    return entry;
  };
  const auto segment_of = [&trace](const PathSegment& segment) -> Json {
    return {{"part", to_string(segment.part)},
            {"name", trace.names[segment.name]},
            {"rank", segment.rank},
            {"start_ns", segment.start_ns},
            {"ns", segment.end_ns - segment.start_ns}};
  };
  return {{"step", path->step},
          {"ns", path->end_ns - path->start_ns},
          {"ranks", path->ranks},
          {"shares", rows_of(path->shares, share_of)},
          {"longest", rows_of(path->longest, segment_of)}};
}

Json steps_of(const Trace& trace) {
  const std::optional<StepTimes> times = step_times(trace);
  if (!times.has_value()) return nullptr;
  const auto spent = step_shares(trace);
  Json steps = with_fields({{"count", times->steps}}, *times);
  steps["phases_ns"] = by_text<StepPhase>(times->phase_ns);
  steps["shares_ns"] = spent ? by_text<StepActivity>(*spent) : Json();
  steps["critical_path"] = path_of(trace);
  steps["median_work"] = with_fields(Json::object(), trace.steps[times->median_step].work);
  steps["mean_ns"] = times->mean_ns;
  steps["mfu"] = times->mfu;
  steps["hfu"] = times->hfu;
  steps["samples"] = trace.samples_per_step;
  return steps;
}

Json failure_of(const Trace& trace) {
  if (!trace.failure) return nullptr;
  const auto row_of = [](const FailedRanks& row) -> Json {
    return {{"ranks", rank_ranges(row.ranks)},
            {"state", row.at_failure.state},
            {"last_call", row.at_failure.last_call}};
  };
  return {{"message", trace.failure->message},
          {"is_out_of_memory", trace.failure->is_out_of_memory},
          {"ranks", rows_of(failed_ranks(*trace.failure), row_of)}};
}

// The bytes sent in groups along each axis, and in other groups.
Json traffic_by_axis(const Trace& trace) {
  std::vector<double> bytes(trace.axes.size() + 1);
  for (const Traffic& pair : trace.communication) bytes[pair.axis + 1] += pair.bytes;
  Json sums = Json::object();
  for (size_t i = 0; i < trace.axes.size(); ++i) sums[trace.axes[i].name] = bytes[i + 1];
  sums["none"] = bytes[0];
  return sums;
}

Json rank_of(const Trace& trace, int number) {
  const RankSummary& rank = trace.ranks[number];
  Json row = with_fields({{"place", place_of(trace, number)}}, rank);
  row["at_peak"] = by_text<MemoryCategory>(rank.at_peak);  // in the place of the list
  return row;
}

Json peak_of(const Trace& trace) {
  if (trace.peak_modules.empty()) return nullptr;
  const auto module_of = [](const ModuleMemory& each) -> Json {
    Json bytes = Json::object();
    for (size_t i = 0; i < kNumMemoryCategories; ++i) {
      if (each.bytes[i] != 0) bytes[to_string(static_cast<MemoryCategory>(i))] = each.bytes[i];
    }
    return {{"module", each.module}, {"bytes", std::move(bytes)}};
  };
  return {{"rank", trace.peak_rank}, {"modules", rows_of(trace.peak_modules, module_of)}};
}

// What is listed: the number of a name stands for the name.
Json row_of(const Trace&, const StageShare& each) { return with_fields(Json::object(), each); }
Json row_of(const Trace&, const LinkSummary& each) {
  return with_fields({{"kind", to_string(each.kind)}}, each);
}
Json row_of(const Trace&, const ModuleSummary& each) {
  return with_fields({{"name", each.module}}, each);
}
Json row_of(const Trace& trace, const OperatorSummary& each) {
  return with_fields({{"name", trace.names[each.name]}}, each);
}
Json row_of(const Trace& trace, const CollectiveSummary& each) {
  return with_fields({{"name", trace.names[each.name]}, {"algorithm", trace.names[each.algorithm]}},
                     each);
}

Json calls_of(const Trace& trace, const std::vector<CallSummary>& calls, bool has_bytes,
              bool takes_time) {
  return rows_of(calls, [&](const CallSummary& each) {
    Json row = {{"name", trace.names[each.name]}, {"calls", each.calls}};
    if (has_bytes) row["bytes"] = each.bytes;
    if (takes_time) row["total_ns"] = each.total_ns;
    return row;
  });
}

}  // namespace

absl::Status write_summary(const Trace& trace, const std::string& path) {
  absl::StatusOr<OutputFile> file = OutputFile::create(path);
  if (!file.ok()) return file.status();
  Json ranks = Json::array();
  for (size_t rank = 0; rank < trace.ranks.size(); ++rank) {
    ranks.push_back(rank_of(trace, static_cast<int>(rank)));
  }
  const auto rows = [&trace](const auto& list) {
    return rows_of(list, [&trace](const auto& each) { return row_of(trace, each); });
  };
  const Json summary = {{"topology", trace.topology},
                        {"seed", absl::StrCat(trace.seed)},
                        {"versions", trace.versions},
                        {"arithmetic", trace.arithmetic},
                        {"program", trace.program},
                        {"repeat_command", trace.repeat_command},
                        {"device", trace.device},
                        {"memory_capacity", trace.memory_capacity},
                        {"world_size", trace.world_size},
                        {"executed_ranks", num_executed(trace)},
                        {"ranks_per_node", trace.ranks_per_node},
                        {"devices_per_rank", trace.devices_per_rank},
                        {"failure", failure_of(trace)},
                        {"faults", trace.faults},
                        {"time_is_modelled", models_time(trace)},
                        {"elapsed_ns", elapsed_ns(trace)},
                        {"steps", steps_of(trace)},
                        {"slices", trace.slices.size()},
                        {"dropped_slices", trace.dropped_slices},
                        {"predicted_ns", trace.predicted_ns},
                        {"traffic_by_axis", traffic_by_axis(trace)},
                        {"stages", rows(stage_shares(trace))},
                        {"links", rows(trace.links)},
                        {"peak", peak_of(trace)},
                        {"ranks", std::move(ranks)},
                        {"operators", rows(trace.operators)},
                        {"collectives", rows(trace.collectives)},
                        {"allocations", calls_of(trace, trace.allocations, true, false)},
                        {"synchronisations", calls_of(trace, trace.synchronisations, false, true)},
                        {"modules", rows(trace.modules)},
                        {"files", calls_of(trace, trace.files, true, true)}};
  file->append(json_text(summary, 1));
  file->append("\n");
  return file->commit();
}

absl::Status write_report(const Trace& trace, const std::string& directory,
                          size_t max_trace_slices) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot create the folder ", directory));
  }
  const auto path = [&directory](const char* name) {
    return (std::filesystem::path(directory) / name).string();
  };
  absl::Status status = write_summary(trace, path("summary.json"));
  if (status.ok()) status = write_perfetto(trace, path("trace.json"), max_trace_slices);
  if (status.ok()) status = write_html(trace, path("report.html"));
  return status;
}

}  // namespace accelerate::simulator
