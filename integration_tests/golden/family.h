/// The kinds of golden cases that can be replayed, by name.
///
/// A family is one source file: a function that runs a case through the library's public API, and
///
///     const FamilyRegistration kRegistration("batch_sampler_shard", &run_case);
///
/// What it returns has the shape of the file's `out`; see answers.h for errors in it.
/// Threads: registration happens before main; lookup is pure.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "integration_tests/golden/compare.h"

namespace accelerate::golden {

/// Gives the library's answer to a case's `in`. May throw what the library throws, and CaseError.
using RunCase = nlohmann::json (*)(const nlohmann::json& in);

/// Puts what HF Accelerate's sentences say (numbers, names) in their place in a recorded answer, as
/// run_case does with ours: the words differ, what they say must not.
using TakeFacts = void (*)(const nlohmann::json& in, nlohmann::json& recorded);

/// How closely a case's answer must be met.
using ToleranceOf = Tolerance (*)(const nlohmann::json& in);

struct Family {
  RunCase run_case = nullptr;
  ToleranceOf tolerance = nullptr;
  /// Fields of `in` in whose objects the order of the entries counts: see entries_in_order.
  std::vector<std::string> ordered_fields;
  /// Null: answers have no sentences.
  TakeFacts take_facts = nullptr;
};

class FamilyRegistration {
 public:
  FamilyRegistration(
      const std::string& name, RunCase run,
      ToleranceOf tolerance = [](const nlohmann::json& /*in*/) { return Tolerance(); },
      std::vector<std::string> ordered_fields = {}, TakeFacts take_facts = nullptr);
  /// Numbers are met as Tolerance says.
  FamilyRegistration(const std::string& name, RunCase run, TakeFacts take_facts);
};

/// Null for a name that no family has.
const Family* find_family(const std::string& name);

/// In alphabetical order.
std::vector<std::string> family_names();

}  // namespace accelerate::golden
