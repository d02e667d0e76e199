/// Where we differ from HF Accelerate on purpose.
///
/// A decision says which cases it is about (a rule on the case's `in`, never a list of cases) and
/// turns the recorded answer into the one we promise instead. Rules apply in the order of the
/// table, each to what the ones before it left. accelerate/docs/differences.md has the reasons.
/// Threads: pure functions.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace accelerate::golden {

struct Decision {
  const char* family;
  const char* name;
  /// One sentence: what HF Accelerate does, and what we do instead.
  const char* reason;
  bool (*applies)(const nlohmann::json& in);
  /// Must leave alone what is as promised already.
  void (*rewrite)(const nlohmann::json& in, nlohmann::json& out);
};

const std::vector<Decision>& all_decisions();

/// The expected answer of a case, and the decisions by which it differs from the recorded one.
struct Expectation {
  nlohmann::json out;
  std::vector<std::string> decisions;
};

/// The family's facts are taken first (see family.h); they are not decisions.
/// May throw for an `in` or `out` that is not of the family's shape.
Expectation expect(const std::string& family, const nlohmann::json& in,
                   const nlohmann::json& recorded,
                   const std::vector<Decision>& decisions = all_decisions());

}  // namespace accelerate::golden
