#include "accelerate/config/tensor_parallel_plan.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "accelerate/base/message_text.h"
#include "accelerate/base/tp_plan.h"

namespace accelerate {
namespace {

using enum TensorStyle;

// By the words of tp_plan_words(), without patterns.
const std::map<std::string, TensorRule>& rules_by_word() {
  static const std::map<std::string, TensorRule> rules = {
      {"colwise", {.style = kColumn}},
      {"colwise_gather_output", {.style = kColumn, .gather_output = true}},
      {"colwise_rep", {.style = kColumn, .gather_output = true}},
      {"embedding_rowwise", {.style = kEmbedding}},
      {"packed_colwise", {.style = kColumn, .blocks = {1, 1}}},
      {"packed_rowwise", {.style = kRow, .blocks = {1, 1}}},
      {"replicate", {}},
      {"replicated_with_grad_allreduce", {.partial_gradient = true}},
      {"rowwise", {.style = kRow}},
      {"rowwise_rep", {.style = kRow, .split_input = true}},
      {"rowwise_split_input", {.style = kRow, .split_input = true}},
      {"sequence_parallel", {.sequence = true}},
  };
  return rules;
}

}  // namespace

TensorParallelPlan tensor_parallel_plan(
    const std::vector<std::pair<std::string, std::string>>& tp_plan) {
  TensorParallelPlan plan;
  for (const auto& [pattern, word] : tp_plan) {
    const auto found = rules_by_word().find(word);
    TORCH_CHECK_VALUE(found != rules_by_word().end(), "tp_plan: \"", pattern, "\" is \"", word,
                      "\", which this version does not do; ", suggestion(word, tp_plan_words()));
    TensorRule rule = found->second;
    rule.pattern = pattern;
    plan.sequence_parallel |= rule.sequence;
    plan.rules.push_back(std::move(rule));
  }
  return plan;
}

}  // namespace accelerate
