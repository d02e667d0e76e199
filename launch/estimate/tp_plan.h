/// How ranks along tp divide the layers of a model, as transformers' models say it by their
/// tp_plan.
///
///     {"layers.*.self_attn.q_proj": "colwise", "layers.*.self_attn.o_proj": "rowwise"}
///
/// The words are those of accelerate/config/tensor_parallel_plan.h, without LibTorch.
/// Threads: values; pure functions.
/// Mirrors: of transformers' models the attribute tp_plan.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/document.h"

namespace accelerate::launcher::estimate {

struct TpRule {
  /// A name of modules or of tensors; `*` stands for any text without dots.
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

/// Whether the pattern names this, a module or a tensor.
bool pattern_matches(absl::string_view pattern, absl::string_view name);

}  // namespace accelerate::launcher::estimate
