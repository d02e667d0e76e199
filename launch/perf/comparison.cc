#include "launch/perf/comparison.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iterator>
#include <set>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/log/absl_check.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/json_text.h"
#include "launch/perf/metrics.h"

namespace accelerate::launcher::perf {
namespace {

using Parts = std::vector<Part>;

// Calls `visit(name, before, after)` for each name of either map, in order; a name that is missing
// has the value 0.
template <typename Values, typename Visit>
void for_names(const Values& before, const Values& after, const Visit& visit) {
  static const typename Values::mapped_type kNone = {};
  std::set<std::string> names;
  for (const Values* values : {&before, &after}) {
    for (const auto& [name, each] : *values) names.insert(name);
  }
  const auto find = [](const Values& values, const std::string& name) -> const auto& {
    const auto found = values.find(name);
    return found != values.end() ? found->second : kNone;
  };
  for (const std::string& name : names) visit(name, find(before, name), find(after, name));
}

std::string calls_text(int64_t calls) {
  return absl::StrCat(calls, calls == 1 ? " call" : " calls");
}

// "aten::copy_: 230 calls instead of 10, 2.87 MiB instead of 80 bytes".
std::string text_of(const Part& part) {
  const Cost& before = part.before;
  const Cost& after = part.after;
  const std::string own = part.name.empty() ? "the program itself" : part.name;
  if (before.calls == 0) return absl::StrCat(own, ": new, ", calls_text(after.calls));
  if (after.calls == 0) return absl::StrCat(own, ": gone, was ", calls_text(before.calls));
  std::vector<std::string> parts;
  if (before.calls != after.calls)
    parts.push_back(absl::StrCat(calls_text(after.calls), " instead of ", before.calls));
  const std::string bytes_before = byte_amount(before.bytes);
  const std::string bytes_after = byte_amount(after.bytes);
  if (bytes_before != bytes_after) {
    parts.push_back(absl::StrCat(bytes_after, " instead of ", bytes_before));
  } else if (parts.empty() && before.bytes != after.bytes) {
    const double more = after.bytes - before.bytes;
    parts.push_back(absl::StrCat(more > 0 ? "+" : "", byte_amount(more)));
  }
  if (parts.empty() && before.flops != after.flops) {
    parts.push_back(absl::StrFormat("%.6g FLOP instead of %.6g", after.flops, before.flops));
  }
  if (parts.empty()) {
    parts.push_back(
        absl::StrCat(duration_text(after.ns), " instead of ", duration_text(before.ns)));
  }
  return absl::StrCat(own, ": ", absl::StrJoin(parts, ", "));
}

// What differs.
Parts parts_of(const Costs& before, const Costs& after) {
  Parts parts;
  for_names(before, after, [&](const std::string& name, const Cost& was, const Cost& is) {
    if (is != was) parts.push_back({name, was, is});
  });
  return parts;
}

bool is_any(const Part&) { return true; }
bool has_other_work(const Part& part) {
  const Cost& before = part.before;
  const Cost& after = part.after;
  return before.calls != after.calls || before.bytes != after.bytes || before.flops != after.flops;
}
double more_ns(const Part& part) { return part.after.ns - part.before.ns; }
double more_bytes(const Part& part) { return part.after.bytes - part.before.bytes; }
double more_flops(const Part& part) { return part.after.flops - part.before.flops; }

// The part that grew most, or for a negative direction shrank most; null: none did.
const Part* largest(const Parts& parts, double direction, double (*change)(const Part&) = more_ns,
                    const std::function<bool(const Part&)>& is_meant = is_any) {
  const Part* best = nullptr;
  for (const Part& part : parts) {
    if (!is_meant(part) || direction * change(part) <= 0) continue;
    if (best == nullptr || direction * change(part) > direction * change(*best)) best = &part;
  }
  return best;
}

std::string text_of(const Part* part) { return part != nullptr ? text_of(*part) : ""; }

// What does other work, by its time, else by its bytes.
std::string by_work(const Parts& parts) {
  const auto weight = [](const Part& part) {
    return std::tuple(std::abs(more_ns(part)), std::abs(more_bytes(part)),
                      std::abs(part.after.calls - part.before.calls));
  };
  const Part* most = nullptr;
  for (const Part& part : parts) {
    if (has_other_work(part) && (most == nullptr || weight(part) > weight(*most))) most = &part;
  }
  return text_of(most);
}

bool has_other_calls(const Part& part) { return part.before.calls != part.after.calls; }

// Whether an operator does other work, and runs on that part of the critical path.
bool has_other_work_on(absl::string_view path_part, const Part& part) {
  const bool is_copy = absl::StartsWith(part.name, "copy to ");
  const bool is_attention = absl::StrContains(part.name, "attention");
  const bool has_flops = part.before.flops != 0 || part.after.flops != 0;
  if (!has_other_work(part)) return false;
  if (path_part == "copies") return is_copy;
  if (path_part == "attention") return is_attention;
  if (path_part == "matrix products") return has_flops && !is_attention;
  return path_part != "other kernels" || (!is_copy && !has_flops);
}

// "mostly in layers.3": the module that accounts for more than half of what changed in that
// direction; empty if none does.
std::string mostly_in(const Parts& modules, double direction, double (*change)(const Part&),
                      bool (*is_meant)(const Part&) = is_any) {
  const Part* most = largest(modules, direction, change, is_meant);
  if (most == nullptr || most->name.empty()) return "";
  double all = 0;
  for (const Part& part : modules) {
    if (is_meant(part)) all += std::max(0.0, direction * change(part));
  }
  if (2 * direction * change(*most) <= all) return "";
  return absl::StrCat("mostly in ", most->name);
}

double value(const Measurement& cost, const std::string& metric) {
  const auto found = cost.metrics.find(metric);
  return found != cost.metrics.end() ? found->second : 0;
}

// The first part that does other work than before, whatever its time; null: none does.
const Part* first_with_other_work(const Parts& parts) {
  const auto found = std::ranges::find_if(parts, has_other_work);
  return found != parts.end() ? &*found : nullptr;
}

// What accounts for the change of a metric between two runs, by the tables of names that both have.
//
// A step's time is taken apart by its critical path, whose parts add up to it; what runs on the
// part that changed most, and does other work than before, is the cause. Memory is attributed to a
// category, counts and bytes to the name in their table. A module is named if it accounts for more
// than half of the change.
class Attribution {
 public:
  // Both outlive it.
  Attribution(const Measurement& before, const Measurement& after)
      : before_(before), after_(after) {
    for (const Table& table : kTables) {
      parts_.push_back(parts_of(before.*table.costs, after.*table.costs));
    }
  }

  // What differs, by name.
  const Parts& parts(Costs Measurement::* table) const {
    const auto found = std::ranges::find(kTables, table, &Table::costs);
    ABSL_CHECK(found != std::end(kTables));
    return parts_[found - std::begin(kTables)];
  }

  // Empty: unknown.
  std::string cause_of(const std::string& metric, double before, double after) const {
    const double direction = after > before ? 1 : -1;
    const absl::string_view group = group_of(metric);
    if (metric == "memory/peak" || metric == "memory/tensors") return category(direction);
    if (group == "memory") return module_of_peak(direction);
    if (group == "communication" || metric == "count/collectives")
      return by_work(parts(&Measurement::collectives));
    if (absl::StrContains(metric, "allocat") && metric != "count/allocation_retries") {
      return by_work(parts(&Measurement::allocations));
    }
    if (group == "work") {
      const auto more = absl::EndsWith(metric, "flops") ? more_flops : more_bytes;
      const std::string text = text_of(largest(parts(&Measurement::operators), direction, more));
      return text.empty() ? text : absl::StrCat(text, in_module(direction));
    }
    if (metric == "count/kernels" || metric == "count/step_kernels" ||
        absl::EndsWith(metric, "launches")) {
      const std::string text = by_work(parts(&Measurement::operators));
      if (text.empty()) return by_work(parts(&Measurement::collectives));
      return absl::StrCat(text, in_module(direction));
    }
    if (metric == "count/synchronisations") return by_work(parts(&Measurement::synchronisations));
    if (metric == "time/step") return of_step(direction);
    if (metric == "time/exposed_communication" || metric == "time/hidden_communication") {
      if (std::string text = by_work(parts(&Measurement::collectives)); !text.empty()) return text;
    }
    if (group == "time") return of_time(direction);
    return "";
  }

 private:
  std::string in_module(double direction) const {
    const std::string module =
        mostly_in(parts(&Measurement::modules), direction, more_ns, has_other_work);
    return module.empty() ? "" : absl::StrCat(", ", module);
  }

  // The critical path says where the step's time went, and the table of what runs there says why.
  std::string of_step(double direction) const {
    const Part* on_path = largest(parts(&Measurement::path), direction);
    if (on_path == nullptr) return of_time(direction);
    const auto most_of = [&](Costs Measurement::* table,
                             const std::function<bool(const Part&)>& is_meant = has_other_work) {
      return largest(parts(table), direction, more_ns, is_meant);
    };
    const Part* cause = nullptr;
    bool is_operator = false;
    if (absl::StartsWith(on_path->name, "communication")) {
      cause = most_of(&Measurement::collectives);
    } else if (on_path->name == "disk") {
      cause = most_of(&Measurement::files);
    } else if (!absl::StartsWith(on_path->name, "waiting")) {
      // A host waits for a device, or issues what it did not issue before: a collective comes with
      // operators of its own.
      if (on_path->name == "host") {
        cause = most_of(&Measurement::synchronisations);
        if (cause == nullptr) cause = most_of(&Measurement::collectives, has_other_calls);
      }
      if (cause == nullptr) {
        cause = most_of(&Measurement::operators, [on_path](const Part& part) {
          return has_other_work_on(on_path->name, part);
        });
        is_operator = cause != nullptr;
      }
    }
    if (cause != nullptr) {
      return absl::StrCat(text_of(*cause), is_operator ? in_module(direction) : "");
    }
    // Kernels and hosts are faster or slower beside other communication, and wait at other places.
    for (auto table : {&Measurement::collectives, &Measurement::synchronisations}) {
      if (std::string text = by_work(parts(table)); !text.empty()) return text;
    }
    return absl::StrCat(on_path->name, ": ", direction > 0 ? "+" : "",
                        duration_text(more_ns(*on_path)), " on the critical path");
  }

  // A program changes what it does, and times follow: whatever does other work, in whatever
  // direction its own time went.
  std::string of_other_work() const {
    for (auto table : {&Measurement::collectives, &Measurement::synchronisations,
                       &Measurement::operators, &Measurement::files}) {
      if (std::string text = by_work(parts(table)); !text.empty()) return text;
    }
    const Part* allocated = first_with_other_work(parts(&Measurement::allocations));
    return allocated != nullptr ? absl::StrCat("allocations by ", text_of(*allocated)) : "";
  }

  // What does other work first, then what only takes another time.
  std::string of_time(double direction) const {
    const auto most_of_all = [&](bool (*is_meant)(const Part&)) {
      const Part* best = nullptr;
      for (auto table : {&Measurement::operators, &Measurement::collectives,
                         &Measurement::synchronisations, &Measurement::files}) {
        const Part* own = largest(parts(table), direction, more_ns, is_meant);
        if (own == nullptr) continue;
        if (best == nullptr || direction * more_ns(*own) > direction * more_ns(*best)) best = own;
      }
      return best;
    };
    if (const Part* best = most_of_all(has_other_work)) return text_of(*best);
    if (std::string other = of_other_work(); !other.empty()) return other;
    if (const Part* best = most_of_all(is_any)) return text_of(*best);
    return activity(direction);
  }

  std::string activity(double direction) const {
    std::string name;
    double most = 0;
    for (const char* each : {"time/exposed_communication", "time/nothing_to_do", "time/copies",
                             "time/other_kernels", "time/matrix_products", "time/attention"}) {
      const double more = direction * (value(after_, each) - value(before_, each));
      if (more <= most) continue;
      most = more;
      name = absl::StrReplaceAll(each, {{"time/", ""}, {"_", " "}});
    }
    if (name.empty()) return "";
    return absl::StrCat(name, ": ", direction > 0 ? "+" : "", duration_text(direction * most),
                        " a step");
  }

  std::string category(double direction) const {
    std::string name;
    double most = 0;
    for_names(before_.metrics, after_.metrics,
              [&](const std::string& metric, double before, double after) {
                const double more = direction * (after - before);
                if (group_of(metric) != "memory" || metric == "memory/peak" ||
                    metric == "memory/tensors" || more <= most)
                  return;
                most = more;
                name = absl::StrReplaceAll(metric, {{"memory/", ""}, {"_", " "}});
              });
    if (name.empty()) return "";
    const std::string module = module_of_peak(direction);
    return absl::StrCat(name, ": ", direction > 0 ? "+" : "", byte_amount(direction * most),
                        module.empty() ? "" : ", ", module);
  }

  std::string module_of_peak(double direction) const {
    return mostly_in(parts(&Measurement::peak), direction, more_bytes);
  }

  const Measurement& before_;
  const Measurement& after_;
  std::vector<Parts> parts_;  // as kTables
};

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

// The step's change by what lies on its critical path, the largest first.
StepChange step_change(const Measurement& before, const Measurement& after, const Parts& path) {
  StepChange change;
  for (const auto& [owner, total] :
       {std::pair(&before, &change.before), std::pair(&after, &change.after)}) {
    for (const auto& [name, share] : owner->path) *total += share.ns;
  }
  std::ranges::copy_if(path, std::back_inserter(change.parts),
                       [](const Part& part) { return more_ns(part) != 0; });
  std::ranges::stable_sort(change.parts, std::greater(),
                           [](const Part& part) { return std::abs(more_ns(part)); });
  return change;
}

void note(std::vector<std::string>& notes, std::string text) {
  if (std::ranges::find(notes, text) == notes.end()) notes.push_back(std::move(text));
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
  if (const double was = value(before, "count/steps"), is = value(after, "count/steps");
      was != is) {
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
    // Parts that changed though no sum of theirs did, as when one operator replaces another.
    for (const auto& [table, metric] :
         {std::pair(&Measurement::operators, "count/kernels"),
          std::pair(&Measurement::collectives, "count/collectives"),
          std::pair(&Measurement::synchronisations, "count/synchronisations"),
          std::pair(&Measurement::allocations, "count/allocations")}) {
      const Part* part = first_with_other_work(attribution.parts(table));
      if (part == nullptr) continue;
      const double was = static_cast<double>(part->before.calls);
      const double is = static_cast<double>(part->after.calls);
      if (tolerance_of(tolerances, metric).allows(was, is)) continue;
      changes.push_back({owner.name, cluster, metric, was, is, text_of(*part)});
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
  for (const Part& part : step.parts) {
    if (lines.size() == kMaxParts) break;
    const double change = more_ns(part);
    others -= change;
    lines.push_back(absl::StrCat(change > 0 ? "+" : "", duration_text(change), "  ", part.name,
                                 " (", duration_text(part.before.ns), " before)"));
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
    for (const Part& part : step.parts) {
      parts.push_back({{"name", part.name}, {"before", part.before.ns}, {"after", part.after.ns}});
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
