#include "accelerate/base/tp_plan.h"

#include <cstddef>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"

namespace accelerate {

bool pattern_matches(absl::string_view pattern, absl::string_view name) {
  const size_t star = pattern.find('*');
  if (star == absl::string_view::npos) return pattern == name;
  if (!absl::StartsWith(name, pattern.substr(0, star))) return false;
  pattern.remove_prefix(star + 1);
  name.remove_prefix(star);
  for (size_t taken = 0;; ++taken) {
    if (pattern_matches(pattern, name.substr(taken))) return true;
    if (taken == name.size() || name[taken] == '.') return false;
  }
}

const std::vector<std::string>& tp_plan_words() {
  static const std::vector<std::string> kWords = absl::StrSplit(
      "colwise colwise_gather_output colwise_rep embedding_rowwise packed_colwise packed_rowwise "
      "replicate replicated_with_grad_allreduce rowwise rowwise_rep rowwise_split_input "
      "sequence_parallel",
      ' ');
  return kWords;
}

}  // namespace accelerate
