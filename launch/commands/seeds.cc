#include <algorithm>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "accelerate/platform/environment.h"
#include "accelerate/platform/simulated_run.h"
#include "launch/commands/simulated_run.h"
#include "launch/process/child_process.h"

namespace accelerate::launcher::commands {
namespace {

constexpr char kName[] = "launch";
constexpr size_t kNamedSeeds = 20;

absl::StatusOr<ChildResult> run_seed(const SeedSweep& sweep, const std::string& program,
                                     uint64_t seed, const SimulationMark& mark,
                                     const std::vector<std::string>& environment,
                                     const RunSignals& signals) {
  process::EnvironmentOverlay changes = {{env::kSimulateSeed, absl::StrCat(seed)}};
  mark.add_to(changes);
  report_below(sweep.plan, absl::StrCat("seed_", seed), changes);
  const process::EnvironmentOverlay& usual = sweep.plan.process.environment;
  if (const auto log = usual.find(env::kSimulateLog); log != usual.end() && log->second) {
    changes[env::kSimulateLog] = absl::StrCat(*log->second, ".seed_", seed);
  }
  return run_simulation(sweep.plan, program, changes, environment, signals);
}

std::string seeds_text(const std::vector<uint64_t>& seeds) {
  const size_t named = std::min(seeds.size(), kNamedSeeds);
  std::string text = absl::StrJoin(seeds.begin(), seeds.begin() + named, ", ");
  if (named < seeds.size()) absl::StrAppend(&text, " and ", seeds.size() - named, " more");
  return text;
}

}  // namespace

int run_seeds(const SeedSweep& sweep, Invocation& invocation) {
  const absl::StatusOr<std::string> program = find_program(invocation, sweep.plan.process.argv[0]);
  if (!program.ok()) return fail_to_start(invocation, kName, program.status());
  const RunSignals signals;
  const SimulationMark mark;
  std::vector<uint64_t> failed;
  int exit_code = 0;
  uint64_t seed = sweep.seeds.first;
  for (; seed < sweep.seeds.end; ++seed) {
    const absl::Time start = absl::Now();
    const absl::StatusOr<ChildResult> run =
        run_seed(sweep, *program, seed, mark, invocation.environment, signals);
    if (!run.ok()) return fail(invocation, kName, run.status());
    if (signals.was_interrupted()) break;
    const std::string took =
        absl::StrFormat(" (%.1f s)", absl::ToDoubleSeconds(absl::Now() - start));
    if (run->exit_code == 0) {
      if (!sweep.is_quiet) invocation.out << "seed " << seed << ": passed" << took << std::endl;
      continue;
    }
    if (failed.empty()) exit_code = run->exit_code;
    failed.push_back(seed);
    invocation.out << "seed " << seed << ": " << failure_text(*run) << took << "\n"
                   << tail_text(*run) << std::flush;
    if (!invocation.out) return kExitLauncherFailed;
  }
  const uint64_t done = seed - sweep.seeds.first;
  const std::string interrupted =
      signals.was_interrupted() ? absl::StrCat(" before ", signals.interruption(), ", ") : ", ";
  std::string summary = absl::StrCat(done, done == 1 ? " seed" : " seeds", interrupted);
  if (failed.empty()) {
    invocation.out << summary << "none failed\n";
  } else {
    absl::StrAppend(&summary, failed.size(), " failed: ", seeds_text(failed));
    Environment of_first = process::environment_of(
        process::apply_overlay(invocation.environment, sweep.plan.process.environment));
    of_first.set(env::kSimulateSeed, absl::StrCat(failed.front()));
    invocation.out << summary
                   << "\nrepeat the first: " << repeat_line(of_first, sweep.plan.process.argv)
                   << "\n";
  }
  const int written = finish(invocation);
  if (written != 0) return written;
  if (signals.was_interrupted()) return signals.exit_code();
  return exit_code != 0 ? exit_code : check_simulated(mark, sweep.plan, sweep.is_quiet, invocation);
}

}  // namespace accelerate::launcher::commands
