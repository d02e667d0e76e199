#include "launch/perf/metrics.h"

#include "absl/strings/match.h"

namespace accelerate::launcher::perf {
namespace {

// In the order of README.md. Floors keep the launcher from the simulator's lists of phases,
// activities and categories.
constexpr const char* kMetrics[] = {
    "time/step",
    "time/first_step",
    "time/run",
    "time/forward",
    "time/backward",
    "time/optimizer",
    "time/attention",
    "time/matrix_products",
    "time/other_kernels",
    "time/exposed_communication",
    "time/copies",
    "time/nothing_to_do",
    "time/hidden_communication",
    "memory/peak",
    "memory/tensors",
    "memory/parameters",
    "memory/gathered_parameters",
    "memory/gradients",
    "memory/optimizer_state",
    "memory/activations",
    "memory/buckets",
    "memory/temporaries",
    "communication/bytes",
    "work/flops",
    "work/bytes",
    "work/allocated_bytes",
    "work/step_flops",
    "work/step_bytes",
    "work/step_allocated_bytes",
    "files/reads",
    "files/writes",
    "files/syncs",
    "files/read_bytes",
    "files/write_bytes",
    "count/kernels",
    "count/collectives",
    "count/steps",
    "count/allocation_retries",
    "count/allocations",
    "count/launches",
    "count/step_kernels",
    "count/step_allocations",
    "count/step_launches",
    "count/synchronisations",
};

}  // namespace

absl::string_view group_of(absl::string_view metric) { return metric.substr(0, metric.find('/')); }

Unit unit_of(absl::string_view metric_or_group) {
  const absl::string_view group = group_of(metric_or_group);
  if (group == "time") return Unit::kNanoseconds;
  if (group == "memory" || group == "communication") return Unit::kBytes;
  return absl::EndsWith(metric_or_group, "bytes") ? Unit::kBytes : Unit::kNumber;
}

std::vector<std::string> metrics_of(absl::string_view group) {
  std::vector<std::string> names;
  for (const char* metric : kMetrics) {
    if (group_of(metric) == group) names.emplace_back(metric);
  }
  return names;
}

}  // namespace accelerate::launcher::perf
