#include "launch/commands/seeds.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "accelerate/base/message_text.h"
#include "accelerate/platform/child.h"
#include "accelerate/platform/environment.h"
#include "launch/process/child_process.h"

namespace accelerate::launch::commands {
namespace {

constexpr char kName[] = "launch";
constexpr size_t kShownLines = 20;
constexpr size_t kNamedSeeds = 20;
constexpr int kInterrupted = 128 + SIGINT;

volatile sig_atomic_t was_interrupted = 0;
void note_interrupt(int) { was_interrupted = 1; }

// Ctrl-C reaches the run as well; this process tells afterwards what it has seen.
class InterruptNote {
 public:
  InterruptNote() {
    was_interrupted = 0;
    struct sigaction action = {};
    action.sa_handler = &note_interrupt;
    sigaction(SIGINT, &action, &before_);
  }
  ~InterruptNote() { sigaction(SIGINT, &before_, nullptr); }
  InterruptNote(const InterruptNote&) = delete;
  InterruptNote& operator=(const InterruptNote&) = delete;

 private:
  struct sigaction before_ = {};
};

absl::StatusOr<ChildResult> run_seed(const SeedSweep& sweep, const std::string& program,
                                     uint64_t seed, const std::vector<std::string>& environment) {
  process::EnvironmentOverlay overlay = sweep.plan.process.environment;
  overlay[env::kSimulateSeed] = absl::StrCat(seed);
  if (const auto report = overlay.find(env::kSimulateReport);
      report != overlay.end() && report->second) {
    *report->second = absl::StrCat(*report->second, "/seed_", seed);
  }
  const process::ExecImage image(program, sweep.plan.process.argv,
                                 process::apply_overlay(environment, overlay));
  const pid_t parent = getpid();
  return run_in_child([&](int fd) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) return;
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    image.exec();
  });
}

// The last lines, each behind a bar.
std::string tail_text(const std::string& output) {
  std::vector<absl::string_view> lines = absl::StrSplit(output, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  const size_t left_out = lines.size() > kShownLines ? lines.size() - kShownLines : 0;
  std::string text = left_out > 0 ? absl::StrCat("  | ... ", left_out, " more\n") : "";
  for (size_t i = left_out; i < lines.size(); ++i) absl::StrAppend(&text, "  | ", lines[i], "\n");
  return text;
}

std::string describe(const ChildResult& run) {
  if (run.signal != 0) return absl::StrCat("ended by signal ", run.signal);
  return absl::StrCat("failed with exit code ", run.exit_code);
}

std::string seeds_text(const std::vector<uint64_t>& seeds) {
  const size_t named = std::min(seeds.size(), kNamedSeeds);
  std::string text = absl::StrJoin(seeds.begin(), seeds.begin() + named, ", ");
  if (named < seeds.size()) absl::StrAppend(&text, " and ", seeds.size() - named, " more");
  return text;
}

}  // namespace

int run_seeds(const SeedSweep& sweep, Invocation& invocation) {
  const std::vector<std::string>& argv = sweep.plan.process.argv;
  const absl::StatusOr<std::string> program =
      process::find_program(argv[0], process::search_path_of(invocation.environment));
  if (!program.ok()) {
    return fail(invocation, kName, program.status(),
                absl::IsNotFound(program.status()) ? kExitNotFound : kExitNotExecutable);
  }
  const InterruptNote interrupt;
  std::vector<uint64_t> failed;
  int exit_code = 0;
  uint64_t seed = sweep.seeds.first;
  for (; seed < sweep.seeds.end; ++seed) {
    const absl::Time start = absl::Now();
    const absl::StatusOr<ChildResult> run = run_seed(sweep, *program, seed, invocation.environment);
    if (!run.ok()) return fail(invocation, kName, run.status());
    if (was_interrupted != 0) break;
    const std::string took =
        absl::StrFormat(" (%.1f s)", absl::ToDoubleSeconds(absl::Now() - start));
    if (run->exit_code == 0) {
      if (!sweep.is_quiet) invocation.out << "seed " << seed << ": passed" << took << std::endl;
      continue;
    }
    if (failed.empty()) exit_code = run->exit_code;
    failed.push_back(seed);
    invocation.out << "seed " << seed << ": " << describe(*run) << took << "\n"
                   << tail_text(run->output) << std::flush;
    if (!invocation.out) return kExitLauncherFailed;
  }
  const uint64_t done = seed - sweep.seeds.first;
  std::string summary = absl::StrCat(done, done == 1 ? " seed" : " seeds",
                                     was_interrupted != 0 ? " before Ctrl-C, " : ", ");
  if (failed.empty()) {
    invocation.out << summary << "none failed\n";
  } else {
    absl::StrAppend(&summary, failed.size(), " failed: ", seeds_text(failed));
    std::vector<std::string> repeat = sweep.repeat_options;
    repeat.push_back(absl::StrCat("--simulate_seed=", failed.front()));
    repeat.insert(repeat.end(), invocation.program.begin(), invocation.program.end());
    invocation.out << summary << "\nrepeat the first: " << shell_line(repeat) << "\n";
  }
  const int written = finish(invocation);
  if (written != 0) return written;
  return was_interrupted != 0 ? kInterrupted : exit_code;
}

}  // namespace accelerate::launch::commands
