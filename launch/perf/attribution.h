/// What accounts for the change of a metric between two runs, by the tables of names that both
/// have.
///
/// A step's time is taken apart by its critical path, whose parts add up to it; what runs on the
/// part that changed most, and does other work than before, is the cause. Memory is attributed to a
/// category, counts and bytes to the name in their table. A module is named if it accounts for more
/// than half of the change.
///
/// Units: as measurement.h.
/// Threads: pure functions.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "launch/perf/measurement.h"

namespace accelerate::launcher::perf {

/// Calls `visit(name, before, after)` for each name of either map, in order; a name that is missing
/// has the value 0.
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

/// What a name in a table cost before and after.
struct Part {
  std::string name;
  Cost before;
  Cost after;

  bool has_other_work() const {
    return before.calls != after.calls || before.bytes != after.bytes ||
           before.flops != after.flops;
  }
  double more_ns() const { return after.ns - before.ns; }
  /// "aten::copy_: 230 calls instead of 10, 2.87 MiB instead of 80 bytes".
  std::string text() const;
};
using Parts = std::vector<Part>;

class Attribution {
 public:
  /// Both outlive it.
  Attribution(const Measurement& before, const Measurement& after);

  /// Empty: unknown.
  std::string cause_of(const std::string& metric, double before, double after) const;

  /// What differs, by name.
  const Parts& parts(Costs Measurement::* table) const;

 private:
  std::string in_module(double direction) const;
  std::string of_step(double direction) const;
  std::string of_time(double direction) const;
  std::string of_other_work() const;
  std::string activity(double direction) const;
  std::string category(double direction) const;
  std::string module_of_peak(double direction) const;

  const Measurement& before_;
  const Measurement& after_;
  std::vector<Parts> parts_;  // as tables()
};

/// The first part that does other work than before, whatever its time; null: none does.
const Part* first_with_other_work(const Parts& parts);

}  // namespace accelerate::launcher::perf
