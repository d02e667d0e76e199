/// One of several runs of a program, on simulated clusters or as it is, in a child whose output is
/// collected.
///
/// Threads: the main thread.
#pragma once

#include <signal.h>

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "accelerate/platform/child.h"
#include "accelerate/platform/unique_fd.h"
#include "launch/commands/commands.h"
#include "launch/plan/launch_plan.h"
#include "launch/process/child_process.h"

namespace accelerate::launcher::commands {

/// What SIGINT (Ctrl-C), SIGTERM, SIGHUP (the terminal was closed) and SIGTSTP (Ctrl-Z) do while it
/// lives, of which there is one at a time. Each run is a process group of its own and gets the
/// signals from here, each one once, whether the terminal sent it to all or somebody to this
/// process alone: the first of those that end a process as it is, another one as SIGKILL, and
/// SIGTSTP, with which this process stops as well. Signals that were ignored before stay ignored.
class RunSignals {
 public:
  RunSignals();
  ~RunSignals();
  RunSignals(const RunSignals&) = delete;
  RunSignals& operator=(const RunSignals&) = delete;

  /// By SIGINT, SIGTERM or SIGHUP.
  bool was_interrupted() const;
  /// What a shell says of a command that the signal ended.
  int exit_code() const;
  /// "Ctrl-C", "SIGTERM" or "SIGHUP".
  const char* interruption() const;

  /// In the process of a run, before its program. Async-signal-safe.
  void enter_run() const;
  /// After the run.
  void leave_run() const;

 private:
  struct Handled {
    int signal;
    void (*handler)(int);
    struct sigaction before;
  };

  void restore() const;

  Handled handled_[4];
};

/// The variable that keeps `accelerate launch` from its default configuration, whatever its value.
inline constexpr char kNoDefaultConfig[] = "ACCELERATE_NO_DEFAULT_CONFIG";

/// Empties that file before a run, so that it does not have the last one's.
void clear_summary(const std::string& path);

/// What the run has written there; null if it has not simulated, of which kNoSimulation tells.
nlohmann::json read_summary(const std::string& path);
inline constexpr char kNoSimulation[] =
    "no simulation took place: the program has to be linked to the simulator and to call "
    "accelerate::run";

/// What tells whether a program simulated: its run mode writes to a file that this process has
/// open, and that no other process sees.
class SimulationMark {
 public:
  SimulationMark();

  /// Tells the run of it.
  void add_to(process::EnvironmentOverlay& changes) const;
  /// Whether no run that was told has simulated. False where the system has no such files.
  bool is_missing() const;

 private:
  UniqueFd file_;
  std::string path_;
};

/// After runs that succeeded: says so if none of them simulated, unless `is_quiet`. Returns the
/// exit code: a failure if the plan's report is missing for that.
int check_simulated(const SimulationMark& mark, const plan::SimulationPlan& plan, bool is_quiet,
                    Invocation& invocation);

/// The folder of the plan's report, which may be the environment's; empty: none.
std::string report_of(const plan::SimulationPlan& plan, absl::Span<const std::string> environment);

/// Makes the folder for a report and tries to write there, so that a run does not end without one.
/// Errors: Unavailable naming the folder and what the system said.
absl::Status prepare_report(const std::string& folder);

/// The name of the program whose report is in the folder, if there is one; else nothing.
std::optional<std::string> program_of_report(const std::string& folder);

/// Has a run whose plan writes a report write it into the folder of this name below the plan's.
void report_below(const plan::SimulationPlan& plan, absl::string_view name,
                  process::EnvironmentOverlay& changes);

/// Waits for the end of the run, which reads from nothing and is ended when this process ends.
/// `program` is the file, `changes` replaces variables of the plan. Errors: as run_in_child.
absl::StatusOr<ChildResult> run_simulation(const plan::SimulationPlan& plan,
                                           const std::string& program,
                                           const process::EnvironmentOverlay& changes,
                                           absl::Span<const std::string> environment,
                                           const RunSignals& signals);

/// The same for any program: the file `program` is told `argv` and has this environment.
absl::StatusOr<ChildResult> run_collected(const std::string& program,
                                          const std::vector<std::string>& argv,
                                          const std::vector<std::string>& environment,
                                          const RunSignals& signals);

/// "failed with exit code 3", "ended by signal 9".
std::string failure_text(const ChildResult& run);

/// The last lines that the run wrote, each behind a bar.
std::string tail_text(const ChildResult& run);

/// Writes a file whole, in a folder that is made if there is none.
absl::Status write_result(const std::string& path, const std::string& text);

}  // namespace accelerate::launcher::commands
