/// Ranks agree on the outcome of a collective action: all ranks go on, or all ranks throw an error
/// that names each rank that failed, with its reason. A rank that fails still takes part in the
/// exchange, so no rank waits for it in vain.
///
/// Threads: the rank's thread. A null group stands for one rank.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerate/comm/process_group.h"
#include "accelerate/tensors/portable.h"

namespace accelerate::internal {

enum class RankStatus : char {
  kOk = '+',
  kDamaged = 'D',      ///< a CheckpointError
  kUnreachable = 'U',  ///< a CheckpointError whose is_damage() is false
  kFailed = 'F',       ///< any other exception
};

struct RankOutcome {
  RankStatus status = RankStatus::kOk;
  /// The text that the rank publishes to the others, or the reason why it failed.
  std::string text;
  /// The exception of this rank; null for outcomes of other ranks.
  std::exception_ptr error;

  bool ok() const { return status == RankStatus::kOk; }
};

/// Runs `body`, which returns the text that this rank publishes. Throws nothing. Local.
RankOutcome outcome_of(const std::function<std::string()>& body);

/// An outcome as bytes, which may travel by other means than a collective. Local.
std::string to_text(const RankOutcome& outcome);
RankOutcome outcome_from(const std::string& text);

/// All ranks' outcomes, by rank. `action` is the name of what the ranks do. Collective.
/// Errors: c10::ValueError, on all ranks, if some ranks are in another action.
std::vector<RankOutcome> exchange_outcomes(const ProcessGroupPtr& group, const std::string& action,
                                           const RankOutcome& own);

/// "rank 1: cannot write ...", an entry for each rank that failed. Local.
std::string failures(const std::vector<RankOutcome>& outcomes, const char* separator = "\n");
bool any(const std::vector<RankOutcome>& outcomes, RankStatus status);

/// Throws if a rank failed: the exception of this rank if it is the only rank of the job; otherwise
/// a c10::ValueError if any rank's failure is kFailed, and a CheckpointError if not. Local.
void throw_failures(const std::vector<RankOutcome>& outcomes, const std::string& action,
                    const RankOutcome& own);

/// Runs `body` on every rank and returns all ranks' outcomes, which are kOk. Collective.
/// Errors: those of exchange_outcomes and throw_failures.
std::vector<RankOutcome> agree(const ProcessGroupPtr& group, const std::string& action,
                               const std::function<std::string()>& body);

/// Runs `body`, which returns a value, on every rank and returns all ranks' values, by rank.
/// Collective. Errors: those of agree.
template <typename Body, typename Value = std::invoke_result_t<const Body&>>
  requires Portable<Value>
std::vector<Value> agree_on_values(const ProcessGroupPtr& group, const std::string& action,
                                   const Body& body) {
  std::vector<Value> values;
  for (RankOutcome& outcome : agree(group, action, [&body] { return to_bytes<Value>(body()); })) {
    values.push_back(from_bytes<Value>(std::move(outcome.text)));
  }
  return values;
}

/// Runs `body` on rank 0 alone and returns its text on every rank. Collective.
/// Errors: CheckpointError on all ranks, with `prefix` before its message, if it threw a
/// c10::Error.
std::string agree_with_rank0(const ProcessGroupPtr& group, const std::string& prefix,
                             const std::function<std::string()>& body);

}  // namespace accelerate::internal
