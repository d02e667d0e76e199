#include "launch/perf/comparison.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/number_text.h"

namespace accelerate::launch::perf {
namespace {

// Groups of metrics in the order of a table; others come last.
constexpr std::array kGroups = {"time", "memory", "communication", "work", "count"};
// Within a group those that sum the others up.
constexpr std::array kTotals = {"time/step", "memory/peak"};

absl::string_view group_of(absl::string_view metric) { return metric.substr(0, metric.find('/')); }

size_t rank_of(absl::string_view metric) {
  const auto group = std::ranges::find(kGroups, group_of(metric));
  const bool is_total = std::ranges::find(kTotals, metric) != kTotals.end();
  return 2 * static_cast<size_t>(group - kGroups.begin()) + (is_total ? 0 : 1);
}

std::string duration_text(double ns) {
  const double size = std::abs(ns);
  if (size >= 1e9) return absl::StrFormat("%.6g s", ns / 1e9);
  if (size >= 1e6) return absl::StrFormat("%.6g ms", ns / 1e6);
  if (size >= 1e3) return absl::StrFormat("%.6g us", ns / 1e3);
  return absl::StrFormat("%.6g ns", ns);
}

std::string byte_amount(double bytes) {
  return absl::StrCat(bytes < 0 ? "-" : "",
                      binary_byte_text(static_cast<int64_t>(std::llround(std::abs(bytes)))));
}

std::string value_text(absl::string_view metric, double value) {
  const absl::string_view group = group_of(metric);
  if (group == "time") return duration_text(value);
  if (group == "memory" || absl::EndsWith(metric, "bytes")) return byte_amount(value);
  return absl::StrFormat("%.12g", value);
}

std::string change_text(const Change& change) {
  const double difference = change.after - change.before;
  const std::string amount =
      absl::StrCat(difference > 0 ? "+" : "", value_text(change.metric, difference));
  if (change.before == 0) return amount;
  return absl::StrFormat("%s (%+.2f %%)", amount, 100 * difference / std::abs(change.before));
}

// What a name of an operator or collective cost before and after.
struct Part {
  std::string name;
  int64_t calls_before = 0, calls_after = 0;
  double bytes_before = 0, bytes_after = 0;
  double ns_before = 0, ns_after = 0;
  double flops_before = 0, flops_after = 0;

  bool has_other_calls() const { return calls_before != calls_after; }
  bool has_other_work() const {
    return has_other_calls() || bytes_before != bytes_after || flops_before != flops_after;
  }
  double more_ns() const { return ns_after - ns_before; }

  std::string text() const {
    if (calls_before == 0) return absl::StrCat(name, ": new, ", calls_text(calls_after));
    if (calls_after == 0) return absl::StrCat(name, ": gone, was ", calls_text(calls_before));
    std::vector<std::string> parts;
    if (has_other_calls())
      parts.push_back(absl::StrCat(calls_text(calls_after), " instead of ", calls_before));
    if (bytes_before != bytes_after) {
      parts.push_back(
          absl::StrCat(byte_amount(bytes_after), " instead of ", byte_amount(bytes_before)));
    }
    if (parts.empty() && flops_before != flops_after) {
      parts.push_back(absl::StrFormat("%.6g FLOP instead of %.6g", flops_after, flops_before));
    }
    if (parts.empty()) {
      parts.push_back(
          absl::StrCat(duration_text(ns_after), " instead of ", duration_text(ns_before)));
    }
    return absl::StrCat(name, ": ", absl::StrJoin(parts, ", "));
  }

  static std::string calls_text(int64_t calls) {
    return absl::StrCat(calls, calls == 1 ? " call" : " calls");
  }
};

template <typename Costs, typename Visit>
void for_names(const Costs& before, const Costs& after, const Visit& visit) {
  static const typename Costs::mapped_type kNone = {};
  std::set<std::string> names;
  for (const Costs* costs : {&before, &after}) {
    for (const auto& [name, each] : *costs) names.insert(name);
  }
  const auto find = [](const Costs& costs, const std::string& name) -> const auto& {
    const auto found = costs.find(name);
    return found != costs.end() ? found->second : kNone;
  };
  for (const std::string& name : names) visit(name, find(before, name), find(after, name));
}

std::vector<Part> operator_parts(const Measurement& before, const Measurement& after) {
  std::vector<Part> parts;
  for_names(
      before.operators, after.operators,
      [&](const std::string& name, const OperatorCost& b, const OperatorCost& a) {
        if (a == b) return;
        parts.push_back({name, b.calls, a.calls, b.bytes, a.bytes, b.ns, a.ns, b.flops, a.flops});
      });
  return parts;
}

std::vector<Part> collective_parts(const Measurement& before, const Measurement& after) {
  std::vector<Part> parts;
  for_names(before.collectives, after.collectives,
            [&](const std::string& name, const CollectiveCost& b, const CollectiveCost& a) {
              if (a == b) return;
              parts.push_back({name, b.calls, a.calls, b.bytes, a.bytes, b.ns, a.ns});
            });
  return parts;
}

// The part that explains a change in that direction best: one whose work changed before one that
// only took longer, then by its time.
const Part* largest(const std::vector<Part>& parts, double direction) {
  const Part* best = nullptr;
  const auto weight = [direction](const Part& part) {
    return std::pair(part.has_other_work(), direction * part.more_ns());
  };
  for (const Part& part : parts) {
    if (best == nullptr || weight(part) > weight(*best)) best = &part;
  }
  if (best == nullptr || (!best->has_other_work() && direction * best->more_ns() <= 0))
    return nullptr;
  return best;
}

class Comparer {
 public:
  Comparer(const Measurement& before, const Measurement& after)
      : before_(before),
        after_(after),
        operators_(operator_parts(before, after)),
        collectives_(collective_parts(before, after)) {}

  /// What differs, by name.
  const std::vector<Part>& operators() const { return operators_; }
  const std::vector<Part>& collectives() const { return collectives_; }

  std::string cause_of(const std::string& metric, double before, double after) const {
    const double direction = after > before ? 1 : -1;
    const absl::string_view group = group_of(metric);
    if (group == "memory") return metric == "memory/peak" ? category(direction) : "";
    if (group == "communication" || metric == "count/collectives") {
      const Part* part = largest(collectives_, direction);
      return part != nullptr ? part->text() : "";
    }
    if (group == "work" || metric == "count/kernels") {
      const Part* part = largest(operators_, direction);
      return part != nullptr ? part->text() : "";
    }
    if (group == "time") return of_time(direction);
    return "";
  }

 private:
  // A collective that is new or gone first, because its time has none of the operators'; then
  // whichever changed more; then the activity of a step that grew.
  std::string of_time(double direction) const {
    const Part* collective = largest(collectives_, direction);
    const Part* own = largest(operators_, direction);
    const Part* best = collective;
    if (own != nullptr) {
      const bool is_better =
          collective == nullptr ||
          std::pair(own->has_other_calls(), direction * own->more_ns()) >
              std::pair(collective->has_other_calls(), direction * collective->more_ns());
      if (is_better) best = own;
    }
    if (best != nullptr) return best->text();
    std::string name;
    double most = 0;
    for (const char* activity : {"time/exposed_communication", "time/nothing_to_do", "time/copies",
                                 "time/other_kernels", "time/matrix_products", "time/attention"}) {
      const double more = direction * (value(after_, activity) - value(before_, activity));
      if (more <= most) continue;
      most = more;
      name = absl::StrReplaceAll(activity, {{"time/", ""}, {"_", " "}});
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
                if (group_of(metric) != "memory" || metric == "memory/peak" || more <= most) return;
                most = more;
                name = absl::StrReplaceAll(metric, {{"memory/", ""}, {"_", " "}});
              });
    if (name.empty()) return "";
    return absl::StrCat(name, ": ", direction > 0 ? "+" : "", byte_amount(direction * most));
  }

  static double value(const Measurement& cost, const std::string& metric) {
    const auto found = cost.metrics.find(metric);
    return found != cost.metrics.end() ? found->second : 0;
  }

  const Measurement& before_;
  const Measurement& after_;
  const std::vector<Part> operators_;
  const std::vector<Part> collectives_;
};

// Parts that changed though no sum of theirs did, as when one operator replaces another.
std::optional<Change> exchanged(const std::vector<Part>& parts, const char* metric) {
  for (const Part& part : parts) {
    if (!part.has_other_work()) continue;
    return Change{.workload = "",
                  .cluster = "",
                  .metric = metric,
                  .before = static_cast<double>(part.calls_before),
                  .after = static_cast<double>(part.calls_after),
                  .cause = part.text()};
  }
  return std::nullopt;
}

void note(std::vector<std::string>& notes, std::string text) {
  if (std::ranges::find(notes, text) == notes.end()) notes.push_back(std::move(text));
}

void compare_clusters(const WorkloadCost& owner, const std::string& cluster,
                      const Measurement& before, const Measurement& after,
                      const Tolerances& tolerances, Comparison& comparison) {
  if (before.hardware != after.hardware) {
    note(comparison.notes, absl::StrCat("the constants of ", cluster, " have changed: was ",
                                        before.hardware, ", is ", after.hardware));
  }
  const Comparer comparer(before, after);
  std::vector<Change> changes;
  for_names(before.metrics, after.metrics, [&](const std::string& name, double was, double is) {
    ++comparison.compared;
    if (tolerance_of(tolerances, name).allows(was, is)) return;
    changes.push_back({owner.name, cluster, name, was, is, comparer.cause_of(name, was, is)});
  });
  if (changes.empty()) {
    for (auto change : {exchanged(comparer.operators(), "count/kernels"),
                        exchanged(comparer.collectives(), "count/collectives")}) {
      if (!change ||
          tolerance_of(tolerances, change->metric).allows(change->before, change->after)) {
        continue;
      }
      change->workload = owner.name;
      change->cluster = cluster;
      changes.push_back(*std::move(change));
    }
  }
  std::ranges::stable_sort(changes, {}, [](const Change& each) { return rank_of(each.metric); });
  comparison.changes.insert(comparison.changes.end(), changes.begin(), changes.end());
}

std::vector<std::vector<std::string>> rows_of(const Comparison& comparison) {
  std::vector<std::vector<std::string>> rows = {
      {"workload", "cluster", "metric", "before", "after", "change", "most of it"}};
  for (const Change& each : comparison.changes) {
    rows.push_back({each.workload, each.cluster, each.metric, value_text(each.metric, each.before),
                    value_text(each.metric, each.after), change_text(each), each.cause});
  }
  return rows;
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
              if (was == is) return;
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
  if (rows.size() > 1) {
    std::vector<size_t> widths(rows[0].size());
    for (const auto& row : rows) {
      for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    for (const auto& row : rows) {
      std::string line;
      for (size_t i = 0; i < row.size(); ++i) {
        absl::StrAppend(&line, i == 0 ? "" : "  ", row[i]);
        if (i + 1 < row.size()) line.append(widths[i] - row[i].size(), ' ');
      }
      absl::StrAppend(&text, line.substr(0, line.find_last_not_of(' ') + 1), "\n");
    }
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
  for (size_t i = 0; i < rows.size(); ++i) {
    for (const std::string& cell : rows[i]) {
      absl::StrAppend(&text, "| ", absl::StrReplaceAll(cell, {{"|", "\\|"}}), " ");
    }
    absl::StrAppend(&text, "|\n");
    if (i == 0) absl::StrAppend(&text, "| --- | --- | --- | --: | --: | --: | --- |\n");
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
  return absl::StrCat(json_text({{"is_equal", comparison.is_equal()},
                                 {"compared", comparison.compared},
                                 {"notes", comparison.notes},
                                 {"missing", comparison.missing},
                                 {"changes", std::move(changes)}},
                                /*indent=*/1),
                      "\n");
}

}  // namespace accelerate::launch::perf
