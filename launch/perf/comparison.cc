#include "launch/perf/comparison.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/json_text.h"
#include "launch/perf/attribution.h"
#include "launch/perf/figure_text.h"
#include "launch/perf/metrics.h"

namespace accelerate::launcher::perf {
namespace {

// Within a group those that sum the others up.
constexpr std::array kTotals = {"time/step", "memory/peak", "memory/tensors"};

// The place of a change in the table of its cluster: by its group, of which others come last, and
// within times and memory, which have one unit, by its size.
std::tuple<size_t, bool, double> place_of(const Change& change) {
  const absl::string_view group = group_of(change.metric);
  const auto found = std::ranges::find(kMetricGroups, group);
  const bool is_part = std::ranges::find(kTotals, change.metric) == kTotals.end();
  const bool has_one_unit = group == "time" || group == "memory";
  return {static_cast<size_t>(found - kMetricGroups.begin()), is_part,
          has_one_unit && is_part ? -std::abs(change.after - change.before) : 0};
}

std::string change_text(const Change& change) {
  const double difference = change.after - change.before;
  const std::string amount =
      absl::StrCat(difference > 0 ? "+" : "", value_text(change.metric, difference));
  if (change.before == 0) return amount;
  return absl::StrFormat("%s (%+.2f %%)", amount, 100 * difference / std::abs(change.before));
}

// Parts that changed though no sum of theirs did, as when one operator replaces another.
std::optional<Change> exchanged(const Parts& parts, const char* metric) {
  const Part* part = first_with_other_work(parts);
  if (part == nullptr) return std::nullopt;
  return Change{.workload = "",
                .cluster = "",
                .metric = metric,
                .before = static_cast<double>(part->before.calls),
                .after = static_cast<double>(part->after.calls),
                .cause = part->text()};
}

// The step's change by what lies on its critical path, the largest first.
StepChange step_change(const Measurement& before, const Measurement& after, const Parts& path) {
  StepChange change;
  for (const auto& [owner, total] :
       {std::pair(&before, &change.before), std::pair(&after, &change.after)}) {
    for (const auto& [name, share] : owner->path) *total += share.ns;
  }
  for (const Part& part : path) {
    if (part.more_ns() != 0) change.parts.push_back({part.name, part.before.ns, part.after.ns});
  }
  std::ranges::stable_sort(change.parts, std::greater(), [](const StepChange::PathPart& part) {
    return std::abs(part.after - part.before);
  });
  return change;
}

void note(std::vector<std::string>& notes, std::string text) {
  if (std::ranges::find(notes, text) == notes.end()) notes.push_back(std::move(text));
}

double steps_of(const Measurement& cost) {
  const auto found = cost.metrics.find("count/steps");
  return found != cost.metrics.end() ? found->second : 0;
}

void compare_clusters(const WorkloadCost& owner, const std::string& cluster,
                      const Measurement& before, const Measurement& after,
                      const Tolerances& tolerances, Comparison& comparison) {
  for_names(before.hardware, after.hardware,
            [&](const std::string& name, const std::string& was, const std::string& is) {
              if (was == is) return;
              note(comparison.notes,
                   absl::StrCat(name, " of ", cluster, " is ", is.empty() ? "unset" : is, ", was ",
                                was.empty() ? "unset" : was));
            });
  if (const double was = steps_of(before), is = steps_of(after); was != is) {
    note(comparison.notes, absl::StrCat(owner.name, " on ", cluster, " took ", is, " steps, was ",
                                        was, ": sums of a whole run differ for that"));
  }
  const Attribution attribution(before, after);
  std::vector<Change> changes;
  for_names(before.metrics, after.metrics, [&](const std::string& name, double was, double is) {
    ++comparison.compared;
    if (tolerance_of(tolerances, name).allows(was, is)) return;
    changes.push_back({owner.name, cluster, name, was, is, attribution.cause_of(name, was, is)});
  });
  if (changes.empty()) {
    for (const auto& [table, metric] :
         {std::pair(&Measurement::operators, "count/kernels"),
          std::pair(&Measurement::collectives, "count/collectives"),
          std::pair(&Measurement::synchronisations, "count/synchronisations"),
          std::pair(&Measurement::allocations, "count/allocations")}) {
      std::optional<Change> change = exchanged(attribution.parts(table), metric);
      if (!change ||
          tolerance_of(tolerances, change->metric).allows(change->before, change->after)) {
        continue;
      }
      change->workload = owner.name;
      change->cluster = cluster;
      changes.push_back(*std::move(change));
    }
  }
  std::ranges::stable_sort(changes, {}, place_of);
  const bool is_other_step =
      std::ranges::find(changes, "time/step", &Change::metric) != changes.end();
  if (is_other_step && !attribution.parts(&Measurement::path).empty()) {
    StepChange step = step_change(before, after, attribution.parts(&Measurement::path));
    step.workload = owner.name;
    step.cluster = cluster;
    comparison.steps.push_back(std::move(step));
  }
  comparison.changes.insert(comparison.changes.end(), changes.begin(), changes.end());
}

Rows rows_of(const Comparison& comparison) {
  Rows rows = {{"workload", "cluster", "metric", "before", "after", "change", "most of it"}};
  for (const Change& each : comparison.changes) {
    rows.push_back({each.workload, each.cluster, each.metric, value_text(each.metric, each.before),
                    value_text(each.metric, each.after), change_text(each), each.cause});
  }
  return rows;
}

// Lines below the table.
constexpr size_t kMaxParts = 8;

std::string step_line(const StepChange& step) {
  return absl::StrCat("The step of ", step.workload, " on ", step.cluster, ", ",
                      duration_text(step.before), " before and ", duration_text(step.after),
                      " after, by its critical path");
}

std::vector<std::string> part_lines(const StepChange& step) {
  std::vector<std::string> lines;
  double others = step.after - step.before;
  for (const StepChange::PathPart& part : step.parts) {
    if (lines.size() == kMaxParts) break;
    const double change = part.after - part.before;
    others -= change;
    lines.push_back(absl::StrCat(change > 0 ? "+" : "", duration_text(change), "  ", part.name,
                                 " (", duration_text(part.before), " before)"));
  }
  if (step.parts.size() > kMaxParts) {
    lines.push_back(absl::StrCat(others > 0 ? "+" : "", duration_text(others), "  others"));
  }
  return lines;
}

std::string summary_line(const Comparison& comparison) {
  const size_t changes = comparison.changes.size();
  if (comparison.is_equal()) {
    return absl::StrCat(comparison.compared, " metrics are as in the baseline\n");
  }
  return absl::StrCat(changes, " of ", comparison.compared, " metrics changed",
                      comparison.missing.empty()
                          ? ""
                          : absl::StrCat(", ", comparison.missing.size(), " without a counterpart"),
                      "\n");
}

}  // namespace

void compare(const WorkloadCost& before, const WorkloadCost& after, const Tolerances& tolerances,
             Comparison& comparison) {
  if (before.command != after.command) {
    note(comparison.notes, absl::StrCat(after.name, " is another command: was ", before.command,
                                        ", is ", after.command));
  }
  for_names(before.versions, after.versions,
            [&](const std::string& name, const std::string& was, const std::string& is) {
              // A program that failed on all clusters has told none.
              if (was == is || after.clusters.empty()) return;
              note(comparison.notes, absl::StrCat(name, " is ", is.empty() ? "unknown" : is,
                                                  ", was ", was.empty() ? "unknown" : was));
            });
  for (const auto& [cluster, cost] : before.clusters) {
    const auto found = after.clusters.find(cluster);
    if (found == after.clusters.end()) {
      comparison.missing.push_back(absl::StrCat(before.name, " on ", cluster, " was not measured"));
      continue;
    }
    compare_clusters(after, cluster, cost, found->second, tolerances, comparison);
  }
  for (const auto& [cluster, cost] : after.clusters) {
    if (before.clusters.contains(cluster)) continue;
    comparison.missing.push_back(absl::StrCat(after.name, " on ", cluster, " has no baseline"));
  }
}

std::string to_table(const Comparison& comparison) {
  std::string text;
  for (const std::string& each : comparison.notes) absl::StrAppend(&text, "note: ", each, "\n");
  for (const std::string& each : comparison.missing) absl::StrAppend(&text, each, "\n");
  const auto rows = rows_of(comparison);
  if (rows.size() > 1) absl::StrAppend(&text, plain_table(rows));
  for (const StepChange& step : comparison.steps) {
    absl::StrAppend(&text, step_line(step), ":\n");
    for (const std::string& line : part_lines(step)) absl::StrAppend(&text, "  ", line, "\n");
  }
  return absl::StrCat(text, summary_line(comparison));
}

std::string to_markdown(const Comparison& comparison) {
  std::string text = absl::StrCat("**", comparison.is_equal() ? "No change" : "Changed",
                                  "**: ", summary_line(comparison));
  if (!comparison.notes.empty() || !comparison.missing.empty()) absl::StrAppend(&text, "\n");
  for (const std::string& each : comparison.notes) absl::StrAppend(&text, "- note: ", each, "\n");
  for (const std::string& each : comparison.missing) absl::StrAppend(&text, "- ", each, "\n");
  const auto rows = rows_of(comparison);
  if (rows.size() == 1) return text;
  absl::StrAppend(&text, "\n");
  absl::StrAppend(&text, markdown_table(rows, "| --- | --- | --- | --: | --: | --: | --- |"));
  for (const StepChange& step : comparison.steps) {
    absl::StrAppend(&text, "\n", step_line(step), ":\n\n");
    for (const std::string& line : part_lines(step)) absl::StrAppend(&text, "- ", line, "\n");
  }
  return text;
}

std::string to_json_text(const Comparison& comparison) {
  nlohmann::ordered_json changes = nlohmann::ordered_json::array();
  for (const Change& each : comparison.changes) {
    changes.push_back({{"workload", each.workload},
                       {"cluster", each.cluster},
                       {"metric", each.metric},
                       {"before", each.before},
                       {"after", each.after},
                       {"cause", each.cause}});
  }
  nlohmann::ordered_json steps = nlohmann::ordered_json::array();
  for (const StepChange& step : comparison.steps) {
    nlohmann::ordered_json parts = nlohmann::ordered_json::array();
    for (const StepChange::PathPart& part : step.parts) {
      parts.push_back({{"name", part.name}, {"before", part.before}, {"after", part.after}});
    }
    steps.push_back({{"workload", step.workload},
                     {"cluster", step.cluster},
                     {"before", step.before},
                     {"after", step.after},
                     {"critical_path", std::move(parts)}});
  }
  return absl::StrCat(json_text({{"is_equal", comparison.is_equal()},
                                 {"compared", comparison.compared},
                                 {"notes", comparison.notes},
                                 {"missing", comparison.missing},
                                 {"changes", std::move(changes)},
                                 {"steps", std::move(steps)}},
                                /*indent=*/1),
                      "\n");
}

}  // namespace accelerate::launcher::perf
