/// A model's tp_plan (accelerate/base/tp_plan.h), read from JSON.
///
/// Threads: values; pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/document.h"

namespace accelerate::launcher::estimate {

struct TpRule {
  /// See pattern_matches.
  std::string pattern;
  /// "colwise", "rowwise" and so on.
  std::string word;
};

/// The first rule that names a tensor or its module is the tensor's.
using TpPlan = std::vector<TpRule>;

/// The plan of an object of patterns and words. Errors: DocumentError with the place of a word that
/// is none of a plan.
TpPlan tp_plan_of(const DocumentNode& object);

/// The plan of a text of JSON. Errors: InvalidArgument, which does not name the file.
absl::StatusOr<TpPlan> parse_tp_plan(absl::string_view text);

}  // namespace accelerate::launcher::estimate
