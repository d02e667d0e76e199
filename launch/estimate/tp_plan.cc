#include "launch/estimate/tp_plan.h"

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "accelerate/base/status.h"

namespace accelerate::launcher::estimate {

TpPlan tp_plan_of(const DocumentNode& object) {
  static const std::vector<std::string>& kWords =
      *new std::vector<std::string>{"colwise",
                                    "colwise_gather_output",
                                    "colwise_rep",
                                    "embedding_rowwise",
                                    "packed_colwise",
                                    "packed_rowwise",
                                    "replicate",
                                    "replicated_with_grad_allreduce",
                                    "rowwise",
                                    "rowwise_rep",
                                    "rowwise_split_input",
                                    "sequence_parallel"};
  TpPlan plan;
  for (const DocumentNode& rule : object.members("an object of patterns and words")) {
    plan.push_back(
        {.pattern = rule.key(), .word = kWords[rule.choice("a word of a plan", kWords)]});
  }
  return plan;
}

absl::StatusOr<TpPlan> parse_tp_plan(absl::string_view text) {
  return as_status(absl::StatusCode::kInvalidArgument, [&]() -> absl::StatusOr<TpPlan> {
    const Document document = Document::json(text);
    return tp_plan_of(document.root());
  });
}

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

}  // namespace accelerate::launcher::estimate
