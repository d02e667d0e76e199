/// The vocabulary of a tp_plan, the dictionary by which a model says how ranks along tp divide its
/// layers: patterns of names, and a word for each.
///
///     {"layers.*.self_attn.q_proj": "colwise", "layers.*.self_attn.o_proj": "rowwise"}
///
/// tensor_parallel_plan (accelerate/config/tensor_parallel_plan.h) has the meaning of each word.
/// Threads: pure functions.
/// Mirrors: of transformers' models the attribute tp_plan.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace accelerate {

/// Whether a pattern matches the whole name of a module or of a tensor; `*` stands for any text
/// without dots, also for none.
bool pattern_matches(absl::string_view pattern, absl::string_view name);

/// All words, sorted.
const std::vector<std::string>& tp_plan_words();

}  // namespace accelerate
