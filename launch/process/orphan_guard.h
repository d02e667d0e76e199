/// Cleans up behind a launcher that was killed.
///
/// A launcher that gets SIGKILL cannot stop anything. Its ranks die with it (PR_SET_PDEATHSIG), but
/// that does not reach what the ranks started themselves. The guard is a small process that holds
/// one end of a pipe to the launcher and knows the ranks' process groups; when the pipe closes
/// without a farewell it kills the groups, and everything else that was started with the run's
/// token in its environment. Out of reach is only what left its group and threw its environment
/// away.
///
/// The guard is not a child of the launcher and not in its process group or session; it ignores all
/// signals that can be ignored and holds none of the launcher's files.
/// Threads: construct while the process has one thread.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "accelerate/platform/unique_fd.h"

namespace accelerate::launcher::process {

/// By this variable the guard knows what ranks started. Runs within runs have the tokens of all,
/// with a colon between them.
inline constexpr char kRunTokenVariable[] = "ACCELERATE_RUN_TOKEN";

class OrphanGuard {
 public:
  /// Construct before the process becomes a reaper of orphans (PR_SET_CHILD_SUBREAPER), which
  /// would make the guard its child after all.
  /// Errors: ResourceExhausted if there was no process or descriptor to be had.
  static absl::StatusOr<OrphanGuard> start();

  OrphanGuard(OrphanGuard&&) = default;
  /// Dismisses the guard: its process ends and kills nothing.
  ~OrphanGuard();

  /// From now on the group is killed if the launcher is. Async-signal-safe: a rank announces itself
  /// before it runs anything, so it is covered at all times.
  void watch_group(pid_t group) const;

  /// Call when the group is gone: its number may soon belong to another process.
  void forget_group(pid_t group) const;

  /// Unique to this run; the value of kRunTokenVariable for every rank.
  const std::string& token() const { return token_; }

 private:
  OrphanGuard(UniqueFd pipe, std::string token)
      : pipe_(std::move(pipe)), token_(std::move(token)) {}

  UniqueFd pipe_;
  std::string token_;
};

/// The processes whose parent is `parent`, from /proc. Processes come and go while the list is
/// made: it is complete only for those that were there before and still are. Threads: any.
std::vector<pid_t> children_of(pid_t parent);

}  // namespace accelerate::launcher::process
