#include "launch/perf/measurement.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "accelerate/base/json_text.h"
#include "accelerate/platform/host_files.h"
#include "simulator/hardware/cluster_spec.h"
#include "simulator/hardware/presets.h"

namespace accelerate::launch::perf {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kFormat = 1;

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

void take_time(const json& summary, Measurement& cost) {
  const json& steps = summary.at("steps");
  if (!steps.is_object()) {
    throw std::invalid_argument(
        "the program took no training step: it calls accelerator.backward() and an optimizer");
  }
  auto& metrics = cost.metrics;
  metrics["time/step"] = steps.at("median_ns").get<double>();
  metrics["time/first_step"] = steps.at("first_ns").get<double>();
  metrics["time/run"] = summary.at("elapsed_ns").get<double>();
  metrics["count/steps"] = steps.at("count").get<double>();
  for (const auto& [phase, ns] : steps.at("phases_ns").items()) {
    metrics[metric_name("time", phase)] = ns.get<double>();
  }
  for (const auto& [activity, ns] : steps.at("shares_ns").items()) {
    metrics[metric_name("time", activity)] = ns.get<double>();
  }
  double hidden = 0;
  for (const json& rank : summary.at("ranks")) {
    hidden = std::max(
        hidden, rank.at("communication_ns").get<double>() - rank.at("exposed_ns").get<double>());
  }
  metrics["time/hidden_communication"] = hidden;
}

void take_memory(const json& summary, Measurement& cost) {
  double peak = 0;
  const json& rank = fullest_rank(summary, &peak);
  cost.metrics["memory/peak"] = peak;
  for (const auto& [category, bytes] : rank.at("at_peak").items()) {
    if (bytes != 0) cost.metrics[metric_name("memory", category)] = bytes.get<double>();
  }
  cost.metrics["count/allocation_retries"] = rank.at("allocation_retries").get<double>();
}

void take_work(const json& summary, Measurement& cost) {
  double calls = 0, flops = 0, bytes = 0;
  for (const json& each : summary.at("operators")) {
    OperatorCost& own = cost.operators[each.at("name").get<std::string>()];
    own.calls += each.at("calls").get<int64_t>();
    own.ns += each.at("total_ns").get<double>();
    own.flops += each.at("flops").get<double>();
    own.bytes += each.at("bytes").get<double>();
    calls += each.at("calls").get<double>();
    flops += each.at("flops").get<double>();
    bytes += each.at("bytes").get<double>();
  }
  cost.metrics["count/kernels"] = calls;
  cost.metrics["work/flops"] = flops;
  cost.metrics["work/bytes"] = bytes;
  double collectives = 0, sent = 0;
  for (const json& each : summary.at("collectives")) {
    CollectiveCost& own = cost.collectives[absl::StrCat(each.at("name").get<std::string>(), " of ",
                                                        each.at("ranks").get<int64_t>(), ", ",
                                                        each.at("algorithm").get<std::string>())];
    own.calls += each.at("calls").get<int64_t>();
    own.bytes += each.at("bytes").get<double>();
    own.ns += each.at("total_ns").get<double>();
    collectives += each.at("calls").get<double>();
    sent += each.at("bytes").get<double>();
  }
  cost.metrics["count/collectives"] = collectives;
  cost.metrics["communication/bytes"] = sent;
}

// ---- Files.

ordered_json to_json(const Measurement& cost) {
  ordered_json operators = ordered_json::object(), collectives = ordered_json::object();
  for (const auto& [name, each] : cost.operators) {
    operators[name] = {
        {"calls", each.calls}, {"ns", each.ns}, {"flops", each.flops}, {"bytes", each.bytes}};
  }
  for (const auto& [name, each] : cost.collectives) {
    collectives[name] = {{"calls", each.calls}, {"bytes", each.bytes}, {"ns", each.ns}};
  }
  return {{"metrics", cost.metrics},
          {"operators", std::move(operators)},
          {"collectives", std::move(collectives)},
          {"hardware", cost.hardware}};
}

Measurement measurement_from(const json& value) {
  Measurement cost;
  cost.metrics = value.at("metrics").get<std::map<std::string, double>>();
  for (const auto& [name, each] : value.at("operators").items()) {
    cost.operators[name] = {each.at("calls"), each.at("ns"), each.at("flops"), each.at("bytes")};
  }
  for (const auto& [name, each] : value.at("collectives").items()) {
    cost.collectives[name] = {each.at("calls"), each.at("bytes"), each.at("ns")};
  }
  cost.hardware = value.at("hardware");
  return cost;
}

}  // namespace

absl::StatusOr<Measurement> measurement_of(const json& summary, const std::string& cluster) {
  const absl::StatusOr<simulator::ClusterSpec> spec = simulator::ClusterSpec::parse(cluster);
  if (!spec.ok()) return spec.status();
  Measurement cost;
  cost.hardware = simulator::internal::cluster_to_json(*spec);
  try {
    take_time(summary, cost);
    take_memory(summary, cost);
    take_work(summary, cost);
  } catch (const std::invalid_argument& error) {
    return absl::InvalidArgumentError(error.what());
  } catch (const json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("the program is linked to another release of the simulator: ", error.what()));
  }
  return cost;
}

std::string to_text(const WorkloadCost& cost) {
  ordered_json clusters = ordered_json::object();
  for (const auto& [cluster, each] : cost.clusters) clusters[cluster] = to_json(each);
  return absl::StrCat(json_text({{"format", kFormat},
                                 {"workload", cost.name},
                                 {"command", cost.command},
                                 {"versions", cost.versions},
                                 {"clusters", std::move(clusters)}},
                                /*indent=*/1),
                      "\n");
}

absl::StatusOr<WorkloadCost> parse_cost(const std::string& text) {
  const absl::StatusOr<json> root = accelerate::internal::parse_strictly(text);
  if (!root.ok()) return absl::InvalidArgumentError(root.status().message());
  try {
    if (const int format = root->at("format"); format != kFormat) {
      return absl::InvalidArgumentError(
          absl::StrCat("its format is ", format, "; this program knows format ", kFormat));
    }
    WorkloadCost cost = {.name = root->at("workload"),
                         .command = root->at("command"),
                         .versions = root->at("versions"),
                         .clusters = {}};
    for (const auto& [cluster, each] : root->at("clusters").items()) {
      cost.clusters[cluster] = measurement_from(each);
    }
    return cost;
  } catch (const json::exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
}

absl::StatusOr<WorkloadCost> load_cost(const std::string& path) {
  HostFiles files;
  const absl::StatusOr<std::string> text = read_file(files, path);
  if (!text.ok()) return text.status();
  absl::StatusOr<WorkloadCost> cost = parse_cost(*text);
  if (cost.ok()) return cost;
  return absl::Status(cost.status().code(), absl::StrCat(path, ": ", cost.status().message()));
}

}  // namespace accelerate::launch::perf
