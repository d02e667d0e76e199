#include "launch/perf/attribution.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "absl/log/absl_check.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "launch/perf/figure_text.h"
#include "launch/perf/metrics.h"

namespace accelerate::launcher::perf {
namespace {

std::string calls_text(int64_t calls) {
  return absl::StrCat(calls, calls == 1 ? " call" : " calls");
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
bool has_other_work(const Part& part) { return part.has_other_work(); }
double more_ns(const Part& part) { return part.more_ns(); }
double more_bytes(const Part& part) { return part.after.bytes - part.before.bytes; }
double more_flops(const Part& part) { return part.after.flops - part.before.flops; }

// The part that grew most, or for a negative direction shrank most; null: none did.
const Part* largest(const Parts& parts, double direction, double (*change)(const Part&) = more_ns,
                    bool (*is_meant)(const Part&) = is_any) {
  const Part* best = nullptr;
  for (const Part& part : parts) {
    if (!is_meant(part) || direction * change(part) <= 0) continue;
    if (best == nullptr || direction * change(part) > direction * change(*best)) best = &part;
  }
  return best;
}

std::string text_of(const Part* part) { return part != nullptr ? part->text() : ""; }

// What does other work, by its time, else by its bytes.
std::string by_work(const Parts& parts) {
  const auto weight = [](const Part& part) {
    return std::tuple(std::abs(part.more_ns()), std::abs(more_bytes(part)),
                      std::abs(part.after.calls - part.before.calls));
  };
  const Part* most = nullptr;
  for (const Part& part : parts) {
    if (part.has_other_work() && (most == nullptr || weight(part) > weight(*most))) most = &part;
  }
  return text_of(most);
}

// What of the operators runs on a part of the critical path.
bool is_copy(const Part& part) { return absl::StartsWith(part.name, "copy to "); }
bool is_attention(const Part& part) { return absl::StrContains(part.name, "attention"); }
bool has_flops(const Part& part) { return part.before.flops != 0 || part.after.flops != 0; }

bool is_other_copy(const Part& part) { return has_other_work(part) && is_copy(part); }
bool is_other_attention(const Part& part) { return has_other_work(part) && is_attention(part); }
bool is_other_product(const Part& part) {
  return has_other_work(part) && has_flops(part) && !is_attention(part);
}
bool is_other_kernel(const Part& part) {
  return has_other_work(part) && !is_copy(part) && !has_flops(part);
}
bool has_other_calls(const Part& part) { return part.before.calls != part.after.calls; }

auto other_work_on(absl::string_view path_part) -> bool (*)(const Part&) {
  if (path_part == "copies") return is_other_copy;
  if (path_part == "attention") return is_other_attention;
  if (path_part == "matrix products") return is_other_product;
  if (path_part == "other kernels") return is_other_kernel;
  return has_other_work;
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

}  // namespace

std::string Part::text() const {
  const std::string own = name.empty() ? "the program itself" : name;
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

const Part* first_with_other_work(const Parts& parts) {
  const auto found = std::ranges::find_if(parts, has_other_work);
  return found != parts.end() ? &*found : nullptr;
}

Attribution::Attribution(const Measurement& before, const Measurement& after)
    : before_(before), after_(after) {
  for (const Table& table : tables()) {
    parts_.push_back(parts_of(before.*table.costs, after.*table.costs));
  }
}

const Parts& Attribution::parts(Costs Measurement::* table) const {
  const auto found = std::ranges::find(tables(), table, &Table::costs);
  ABSL_CHECK(found != tables().end());
  return parts_[found - tables().begin()];
}

std::string Attribution::cause_of(const std::string& metric, double before, double after) const {
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

std::string Attribution::in_module(double direction) const {
  const std::string module =
      mostly_in(parts(&Measurement::modules), direction, more_ns, has_other_work);
  return module.empty() ? "" : absl::StrCat(", ", module);
}

// The critical path says where the step's time went, and the table of what runs there says why.
std::string Attribution::of_step(double direction) const {
  const Part* on_path = largest(parts(&Measurement::path), direction);
  if (on_path == nullptr) return of_time(direction);
  const auto most_of = [&](Costs Measurement::* table,
                           bool (*is_meant)(const Part&) = has_other_work) {
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
      cause = most_of(&Measurement::operators, other_work_on(on_path->name));
      is_operator = cause != nullptr;
    }
  }
  if (cause != nullptr) return absl::StrCat(cause->text(), is_operator ? in_module(direction) : "");
  // Kernels and hosts are faster or slower beside other communication, and wait at other places.
  for (auto table : {&Measurement::collectives, &Measurement::synchronisations}) {
    if (std::string text = by_work(parts(table)); !text.empty()) return text;
  }
  return absl::StrCat(on_path->name, ": ", direction > 0 ? "+" : "",
                      duration_text(on_path->more_ns()), " on the critical path");
}

// A program changes what it does, and times follow: whatever does other work, in whatever direction
// its own time went.
std::string Attribution::of_other_work() const {
  for (auto table : {&Measurement::collectives, &Measurement::synchronisations,
                     &Measurement::operators, &Measurement::files}) {
    if (std::string text = by_work(parts(table)); !text.empty()) return text;
  }
  const Part* allocated = first_with_other_work(parts(&Measurement::allocations));
  return allocated != nullptr ? absl::StrCat("allocations by ", allocated->text()) : "";
}

// What does other work first, then what only takes another time.
std::string Attribution::of_time(double direction) const {
  const auto most_of_all = [&](bool (*is_meant)(const Part&)) {
    const Part* best = nullptr;
    for (auto table : {&Measurement::operators, &Measurement::collectives,
                       &Measurement::synchronisations, &Measurement::files}) {
      const Part* own = largest(parts(table), direction, more_ns, is_meant);
      if (own == nullptr) continue;
      if (best == nullptr || direction * own->more_ns() > direction * best->more_ns()) best = own;
    }
    return best;
  };
  if (const Part* best = most_of_all(has_other_work)) return best->text();
  if (std::string other = of_other_work(); !other.empty()) return other;
  if (const Part* best = most_of_all(is_any)) return best->text();
  return activity(direction);
}

std::string Attribution::activity(double direction) const {
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

std::string Attribution::category(double direction) const {
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

std::string Attribution::module_of_peak(double direction) const {
  return mostly_in(parts(&Measurement::peak), direction, more_bytes);
}

}  // namespace accelerate::launcher::perf
