/// How each rank's part of a collective action ended, so that all ranks go on, or none does.
///
/// Threads: the rank's thread.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "accelerate/comm/operations.h"

namespace accelerate::internal {

enum class Ending : char {
  kWell = '+',
  kDamaged = 'D',      ///< a CheckpointError
  kUnreachable = 'U',  ///< one that is no damage
  kFailed = 'F',       ///< any other
};

struct RankEnding {
  Ending ending = Ending::kWell;
  /// What the rank says, or why it failed.
  std::string text;
  /// Of this rank, if it failed.
  std::exception_ptr error;
};

/// Runs `body`, which returns what the rank says. Throws nothing.
RankEnding ending_of(const std::function<std::string()>& body);

/// All ranks' endings, by rank. `what` is the action. Collective; a null group stands for one rank.
/// Errors: c10::ValueError, on all ranks, if some are in another action.
std::vector<RankEnding> exchange_endings(const ProcessGroupPtr& group, const std::string& what,
                                         const RankEnding& own);

/// "rank 1: cannot write ...", a line for each rank that failed.
std::string failures(const std::vector<RankEnding>& endings);
bool any(const std::vector<RankEnding>& endings, Ending ending);

/// If a rank failed, throws: what this rank failed by, or else a c10::ValueError if that is what
/// others failed by, or else a CheckpointError.
void throw_failures(const std::vector<RankEnding>& endings, const std::string& what,
                    const RankEnding& own);

}  // namespace accelerate::internal
