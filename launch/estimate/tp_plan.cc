#include "launch/estimate/tp_plan.h"

#include <cstddef>

#include "absl/status/status.h"
#include "accelerate/base/status.h"
#include "accelerate/base/tp_plan.h"

namespace accelerate::launcher::estimate {

TpPlan tp_plan_of(const DocumentNode& object) {
  TpPlan plan;
  for (const DocumentNode& rule : object.members("an object of patterns and words")) {
    const size_t word = rule.choice("a word of a plan", tp_plan_words());
    plan.push_back({.pattern = rule.key(), .word = tp_plan_words()[word]});
  }
  return plan;
}

absl::StatusOr<TpPlan> parse_tp_plan(absl::string_view text) {
  return as_status(absl::StatusCode::kInvalidArgument, [&]() -> absl::StatusOr<TpPlan> {
    const Document document = Document::json(text);
    return tp_plan_of(document.root());
  });
}

}  // namespace accelerate::launcher::estimate
