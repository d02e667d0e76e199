/// One of several runs of a program, on simulated clusters or as it is, in a child whose output is
/// collected.
///
/// Threads: the main thread.
#pragma once

#include <signal.h>

#include <cstdint>
#include <functional>
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
#include "launch/settings/validate.h"

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

// ---- `launch --simulate SPEC --seeds FIRST:END`: the run, repeated with each seed.

struct SeedSweep {
  plan::SimulationPlan plan;
  settings::SeedRange seeds;
  /// Only failures are told.
  bool is_quiet = false;
};

/// One run after the other, each with its output collected; a run reads from nothing. Writes a line
/// per seed, for a run that failed its last lines, and at the end the failures with the command
/// that repeats the first one. SIGINT, from Ctrl-C or to this process alone, goes to the run of
/// that seed and ends the sweep; a second one kills the run with all its processes. Returns the
/// exit code of the first run that failed, else 0; 130 after SIGINT.
int run_seeds(const SeedSweep& sweep, Invocation& invocation);

// ---- `accelerate simulate --sweep "2x8:h100;4x8:h100" PROGRAM`: the program on each of several
// simulated clusters, a row each. `accelerate simulate --fit 16x8:h100 PROGRAM`: the smallest part
// of that cluster on which it fits.

struct ClusterSweep {
  /// Between semicolons; empty for a search.
  std::string clusters;
  /// The largest cluster of a search, as NODESxRANKS:DEVICE; empty for a sweep.
  std::string largest;
  /// What a run on that cluster is. Errors: InvalidArgument.
  std::function<absl::StatusOr<plan::SimulationPlan>(const std::string& cluster)> plan;
  int64_t tokens_per_sample = 0;  ///< 0: unknown
  std::string csv;                ///< the file for the table, after each run; empty: none
  std::string report = {};        ///< the folder of the runs' reports; empty: none
};

/// One run after the other, each with its output collected; a run reads from nothing. Writes a row
/// per run as soon as it has ended, and why a run does not fit or failed. A failure that is not for
/// want of memory is one of the program's, and the sweep goes on.
///
/// A search tries 1, 2, 4, ... ranks of one node, then 1, 2, 4, ... whole nodes, and at last, by
/// halves, what is between the largest that did not fit and the smallest that did: it takes for
/// granted that with more ranks a rank needs no more memory. A size on which the program fails is
/// one that it does not take. Where a run that succeeded has used no memory of a device, nothing
/// was measured: it is unknown whether the program fits, and a search ends.
///
/// Ctrl-C ends the run of that cluster and the sweep. Returns 0 if no run of a sweep failed or one
/// of a search fitted; 1 else; 2 for a cluster that does not exist; 127 and 126 for a program that
/// does not exist or cannot be executed; 130 after Ctrl-C.
int run_sweep(const ClusterSweep& sweep, Invocation& invocation);

}  // namespace accelerate::launcher::commands
