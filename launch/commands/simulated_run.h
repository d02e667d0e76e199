/// One of several runs of a program on simulated clusters, in a child whose output is collected.
///
/// Threads: the main thread.
#pragma once

#include <signal.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "accelerate/platform/child.h"
#include "launch/plan/launch_plan.h"
#include "launch/process/child_process.h"

namespace accelerate::launch::commands {

/// While it lives, Ctrl-C ends the run that goes on, and not this process, which tells afterwards
/// what it has seen. One at a time.
class InterruptNote {
 public:
  InterruptNote();
  ~InterruptNote();
  InterruptNote(const InterruptNote&) = delete;
  InterruptNote& operator=(const InterruptNote&) = delete;

  bool was_interrupted() const;

 private:
  struct sigaction before_ = {};
};

/// What a shell says of a command that Ctrl-C ended.
inline constexpr int kInterrupted = 128 + SIGINT;

/// Waits for the end of the run, which reads from nothing and is ended when this process ends.
/// `program` is the file, `changes` replaces variables of the plan. Errors: as run_in_child.
absl::StatusOr<ChildResult> run_simulation(const plan::SimulationPlan& plan,
                                           const std::string& program,
                                           const process::EnvironmentOverlay& changes,
                                           absl::Span<const std::string> environment);

/// "failed with exit code 3", "ended by signal 9".
std::string failure_text(const ChildResult& run);

/// The last lines, each behind a bar.
std::string tail_text(absl::string_view output);

}  // namespace accelerate::launch::commands
