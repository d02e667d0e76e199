#include "launch/perf/measurement.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "accelerate/base/checksum.h"
#include "accelerate/base/document.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/status.h"
#include "accelerate/platform/host_files.h"
#include "simulator/hardware/cluster_spec.h"
#include "simulator/hardware/presets.h"

namespace accelerate::launcher::perf {
namespace {

using accelerate::internal::exact_json_text;
using accelerate::internal::parse_json;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kFormat = 2;

std::string metric_name(absl::string_view group, std::string name) {
  return absl::StrCat(group, "/", absl::StrReplaceAll(name, {{" ", "_"}}));
}

// The rank whose devices need most memory.
const json& fullest_rank(const json& summary, double* peak) {
  const json* fullest = nullptr;
  for (const json& rank : summary.at("ranks")) {
    const double own =
        std::max(rank.at("driver_peak").get<double>(), rank.at("memory_peak").get<double>());
    if (fullest != nullptr && own <= *peak) continue;
    *peak = own;
    fullest = &rank;
  }
  if (fullest == nullptr) throw std::invalid_argument("the run had no ranks");
  return *fullest;
}

void take_steps(const json& steps, Measurement& cost) {
  auto& metrics = cost.metrics;
  metrics["time/step"] = steps.at("median_ns").get<double>();
  metrics["time/first_step"] = steps.at("first_ns").get<double>();
  metrics["count/steps"] = steps.at("count").get<double>();
  if (const json& path = steps.at("critical_path"); path.is_object()) {
    for (const json& share : path.at("shares")) {
      std::string name = share.at("part");
      if (share.contains("name")) absl::StrAppend(&name, ", ", share.at("name").get<std::string>());
      Cost& own = cost.path[name];
      own.calls += share.at("segments").get<int64_t>();
      own.ns += share.at("ns").get<double>();
    }
  }
  const json& work = steps.at("median_work");
  for (const auto& [metric, figure] :
       {std::pair("work/step_flops", "flops"), std::pair("work/step_bytes", "bytes"),
        std::pair("work/step_allocated_bytes", "block_bytes"),
        std::pair("count/step_kernels", "operators"), std::pair("count/step_allocations", "blocks"),
        std::pair("count/step_launches", "launches")}) {
    metrics[metric] = work.at(figure).get<double>();
  }
  for (const auto& [phase, ns] : steps.at("phases_ns").items()) {
    metrics[metric_name("time", phase)] = ns.get<double>();
  }
  for (const auto& [activity, ns] : steps.at("shares_ns").items()) {
    metrics[metric_name("time", activity)] = ns.get<double>();
  }
}

void take_time(const json& summary, Measurement& cost) {
  auto& metrics = cost.metrics;
  metrics["count/steps"] = 0;
  if (const json& steps = summary.at("steps"); steps.is_object()) take_steps(steps, cost);
  metrics["time/run"] = summary.at("elapsed_ns").get<double>();
  double hidden = 0, launches = 0;
  for (const json& rank : summary.at("ranks")) {
    hidden = std::max(
        hidden, rank.at("communication_ns").get<double>() - rank.at("exposed_ns").get<double>());
    launches += rank.at("launches").get<double>();
  }
  metrics["count/launches"] = launches;
  metrics["time/hidden_communication"] = hidden;
}

void take_memory(const json& summary, Measurement& cost) {
  double peak = 0;
  const json& rank = fullest_rank(summary, &peak);
  cost.metrics["memory/peak"] = peak;
  cost.metrics["memory/tensors"] = rank.at("memory_peak").get<double>();
  for (const auto& [category, bytes] : rank.at("at_peak").items()) {
    if (bytes != 0) cost.metrics[metric_name("memory", category)] = bytes.get<double>();
  }
  if (const json& modules = summary.at("peak"); modules.is_object()) {
    for (const json& each : modules.at("modules")) {
      double bytes = 0;
      for (const auto& [category, part] : each.at("bytes").items()) bytes += part.get<double>();
      cost.peak[each.at("module").get<std::string>()].bytes = bytes;
    }
  }
  cost.metrics["count/allocation_retries"] = rank.at("allocation_retries").get<double>();
}

// A row of the summary's table. It has the figures of that table.
Cost cost_of(const json& row) {
  return {.calls = row.value("calls", int64_t{0}),
          .ns = row.value("total_ns", 0.0),
          .flops = row.value("flops", 0.0),
          .bytes = row.value("bytes", 0.0)};
}

Cost& operator+=(Cost& sum, const Cost& other) {
  sum.calls += other.calls;
  sum.ns += other.ns;
  sum.flops += other.flops;
  sum.bytes += other.bytes;
  return sum;
}

// Returns the table's sum.
Cost take_table(const json& rows, Costs& table) {
  Cost sum;
  for (const json& row : rows) {
    const Cost own = cost_of(row);
    table[row.at("name").get<std::string>()] += own;
    sum += own;
  }
  return sum;
}

void take_work(const json& summary, Measurement& cost) {
  auto& metrics = cost.metrics;
  const Cost operators = take_table(summary.at("operators"), cost.operators);
  metrics["count/kernels"] = static_cast<double>(operators.calls);
  metrics["work/flops"] = operators.flops;
  metrics["work/bytes"] = operators.bytes;
  Cost collectives;
  for (const json& row : summary.at("collectives")) {
    const std::string name =
        absl::StrCat(row.at("name").get<std::string>(), " of ", row.at("ranks").get<int64_t>(),
                     ", ", row.at("algorithm").get<std::string>());
    const Cost own = cost_of(row);
    cost.collectives[name] += own;
    collectives += own;
  }
  metrics["count/collectives"] = static_cast<double>(collectives.calls);
  metrics["communication/bytes"] = collectives.bytes;
  take_table(summary.at("modules"), cost.modules);
  const Cost synchronisations = take_table(summary.at("synchronisations"), cost.synchronisations);
  metrics["count/synchronisations"] = static_cast<double>(synchronisations.calls);
  const Cost allocations = take_table(summary.at("allocations"), cost.allocations);
  metrics["count/allocations"] = static_cast<double>(allocations.calls);
  metrics["work/allocated_bytes"] = allocations.bytes;
  take_table(summary.at("files"), cost.files);
  for (const auto& [name, each] : cost.files) {
    metrics[absl::StrCat("files/", name, "s")] = static_cast<double>(each.calls);
    if (name != "sync") metrics[absl::StrCat("files/", name, "_bytes")] = each.bytes;
  }
}

// ---- Files.

// Figures that are 0 are left out.
std::string cost_text(const Cost& cost) {
  ordered_json value = ordered_json::object();
  if (cost.calls != 0) value["calls"] = cost.calls;
  if (cost.ns != 0) value["ns"] = cost.ns;
  if (cost.flops != 0) value["flops"] = cost.flops;
  if (cost.bytes != 0) value["bytes"] = cost.bytes;
  return json_text(value);
}

// An object with a line for each member, at the given depth.
template <typename Members, typename ValueText>
std::string lines_of(const Members& members, int depth, const ValueText& value_text) {
  if (members.empty()) return "{}";
  std::vector<std::string> lines;
  for (const auto& [name, value] : members) {
    lines.push_back(
        absl::StrCat("\n", std::string(depth, ' '), json_text(name), ": ", value_text(value)));
  }
  return absl::StrCat("{", absl::StrJoin(lines, ","), "\n", std::string(depth - 1, ' '), "}");
}

std::string measurement_text(const Measurement& cost) {
  std::vector<std::pair<std::string, std::string>> parts = {
      {"metrics", lines_of(cost.metrics, 4, [](double value) { return json_text(value); })}};
  for (const Table& table : kTables) {
    parts.emplace_back(table.name, lines_of(cost.*table.costs, 4, cost_text));
  }
  parts.emplace_back("hardware", lines_of(cost.hardware, 4, [](const std::string& value) {
                       return json_text(value);
                     }));
  return lines_of(parts, 3, [](const std::string& text) { return text; });
}

std::map<std::string, std::string> texts_of(const DocumentNode& object) {
  std::map<std::string, std::string> texts;
  for (const DocumentNode& each : object.members()) texts[each.key()] = each.text();
  return texts;
}

Measurement measurement_from(const DocumentNode& value) {
  Measurement cost;
  for (const DocumentNode& metric : value.at("metrics").members()) {
    cost.metrics[metric.key()] = metric.number();
  }
  for (const Table& table : kTables) {
    for (const DocumentNode& each : value.at(table.name).members()) {
      const auto number = [&](const char* name) {
        const auto found = each.find(name);
        return found ? found->number() : 0;
      };
      const auto calls = each.find("calls");
      (cost.*table.costs)[each.key()] = {.calls = calls ? calls->integer() : 0,
                                         .ns = number("ns"),
                                         .flops = number("flops"),
                                         .bytes = number("bytes")};
    }
  }
  cost.hardware = texts_of(value.at("hardware"));
  return cost;
}

absl::StatusOr<std::map<std::string, std::string>> hardware_of(const simulator::ClusterSpec& spec) {
  std::map<std::string, std::string> constants;
  const json all = parse_json(simulator::internal::cluster_to_json(spec)).flatten();
  for (const auto& [path, value] : all.items()) constants[path.substr(1)] = exact_json_text(value);
  // A table of kernels from a file has no release.
  if (spec.device && !spec.device->kernel_file.empty()) {
    HostFiles files;
    ACCELERATE_ASSIGN_OR_RETURN(const std::string kernels,
                                read_file(files, spec.device->kernel_file));
    constants["device/efficiency, SHA-256"] = sha256(kernels);
  }
  return constants;
}

}  // namespace

absl::StatusOr<Measurement> measurement_of(const json& summary, const std::string& cluster) {
  ACCELERATE_ASSIGN_OR_RETURN(const simulator::ClusterSpec spec,
                              simulator::ClusterSpec::parse(cluster));
  Measurement cost;
  ACCELERATE_ASSIGN_OR_RETURN(cost.hardware, hardware_of(spec));
  try {
    take_time(summary, cost);
    take_memory(summary, cost);
    take_work(summary, cost);
    // Means are rounded where machines may compute their last digits otherwise.
    for (auto& [name, value] : cost.metrics) value = std::round(value * 1000) / 1000;
  } catch (const std::invalid_argument& error) {
    return absl::InvalidArgumentError(error.what());
  } catch (const json::exception& error) {
    return invalid("the program is linked to another release of the simulator: ", error.what());
  }
  return cost;
}

std::string to_text(const WorkloadCost& cost) {
  const auto own = [](const std::string& text) { return text; };
  const std::vector<std::pair<std::string, std::string>> parts = {
      {"format", absl::StrCat(kFormat)},
      {"workload", json_text(cost.name)},
      {"command", json_text(cost.command)},
      {"versions", json_text(cost.versions)},
      {"clusters", lines_of(cost.clusters, 2, measurement_text)}};
  return absl::StrCat(lines_of(parts, 1, own), "\n");
}

absl::StatusOr<WorkloadCost> parse_cost(const std::string& text) {
  return as_status(absl::StatusCode::kInvalidArgument, [&]() -> absl::StatusOr<WorkloadCost> {
    const Document document = Document::json(text);
    const DocumentNode root = document.root();
    if (const int64_t format = root.at("format").integer(); format != kFormat) {
      return invalid("its format is ", format, "; this program knows format ", kFormat);
    }
    WorkloadCost cost = {.name = root.at("workload").text(),
                         .command = root.at("command").text(),
                         .versions = texts_of(root.at("versions")),
                         .clusters = {}};
    for (const DocumentNode& each : root.at("clusters").members()) {
      cost.clusters[each.key()] = measurement_from(each);
    }
    return cost;
  });
}

absl::StatusOr<WorkloadCost> load_cost(const std::string& path) {
  HostFiles files;
  return read_file_as(files, path, parse_cost);
}

}  // namespace accelerate::launcher::perf
