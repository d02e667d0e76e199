#include "accelerate/comm/agree.h"

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/comm/objects.h"
#include "accelerate/values/texts.h"

namespace accelerate::internal {

RankOutcome outcome_of(const std::function<std::string()>& body) {
  try {
    return {.text = body()};
  } catch (const CheckpointError& error) {
    return {error.is_damage() ? RankStatus::kDamaged : RankStatus::kUnreachable,
            exception_text(error), std::current_exception()};
  } catch (...) {
    return {RankStatus::kFailed, exception_text(), std::current_exception()};
  }
}

std::string to_text(const RankOutcome& outcome) {
  return absl::StrCat(std::string(1, static_cast<char>(outcome.status)), outcome.text);
}

RankOutcome outcome_from(const std::string& text) {
  return {.status = static_cast<RankStatus>(text.at(0)), .text = text.substr(1)};
}

std::vector<RankOutcome> exchange_outcomes(const ProcessGroupPtr& group, const std::string& action,
                                           const RankOutcome& own) {
  if (!group) return {own};
  std::vector<RankOutcome> all;
  std::string elsewhere;
  for (const std::string& bytes :
       all_gather_bytes(group, absl::StrCat(action, "\n", to_text(own)))) {
    const size_t end = bytes.find('\n');
    const std::string theirs = bytes.substr(0, end);
    if (theirs != action) {
      absl::StrAppend(&elsewhere, elsewhere.empty() ? "" : ", ", "rank ", all.size(), " is in ",
                      theirs);
      all.emplace_back();
      continue;
    }
    all.push_back(outcome_from(bytes.substr(end + 1)));
  }
  TORCH_CHECK_VALUE(elsewhere.empty(), action, ", rank ", group->getRank(), ": ", elsewhere);
  return all;
}

std::string failures(const std::vector<RankOutcome>& outcomes, const char* separator) {
  std::string text;
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (outcomes[rank].ok()) continue;
    absl::StrAppend(&text, text.empty() ? "" : separator, "rank ", rank, ": ", outcomes[rank].text);
  }
  return text;
}

bool any(const std::vector<RankOutcome>& outcomes, RankStatus status) {
  return std::ranges::count(outcomes, status, &RankOutcome::status) > 0;
}

void throw_failures(const std::vector<RankOutcome>& outcomes, const std::string& action,
                    const RankOutcome& own) {
  const std::string failed = failures(outcomes);
  if (failed.empty()) return;
  if (own.error && outcomes.size() == 1) std::rethrow_exception(own.error);
  const std::string message = absl::StrCat(action, ": ", failed);
  TORCH_CHECK_VALUE(!any(outcomes, RankStatus::kFailed), message);
  throw CheckpointError(message);
}

std::vector<RankOutcome> agree(const ProcessGroupPtr& group, const std::string& action,
                               const std::function<std::string()>& body) {
  const RankOutcome own = outcome_of(body);
  std::vector<RankOutcome> all = exchange_outcomes(group, action, own);
  throw_failures(all, action, own);
  return all;
}

std::string agree_with_rank0(const ProcessGroupPtr& group, const std::string& prefix,
                             const std::function<std::string()>& body) {
  RankOutcome outcome;
  if (!group || group->getRank() == 0) outcome = outcome_of(body);
  outcome = outcome_from(broadcast_bytes(group, to_text(outcome)));
  if (!outcome.ok()) throw CheckpointError(absl::StrCat(prefix, outcome.text));
  return std::move(outcome.text);
}

}  // namespace accelerate::internal
