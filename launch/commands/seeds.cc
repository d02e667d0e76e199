#include "launch/commands/seeds.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <new>
#include <utility>

#include "absl/log/absl_check.h"
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

// What this process and that of a run tell each other. They share the memory, so a Ctrl-C that
// comes while a run starts is seen by one of them.
struct RunState {
  std::atomic<pid_t> group = 0;  // the run's process group
  std::atomic<int> interrupts = 0;
};
static_assert(std::atomic<pid_t>::is_always_lock_free && std::atomic<int>::is_always_lock_free);
RunState* run_state = nullptr;

void interrupt_run(int) {
  const int error = errno;
  const int earlier = run_state->interrupts.fetch_add(1);
  if (const pid_t group = run_state->group) kill(-group, earlier == 0 ? SIGINT : SIGKILL);
  errno = error;
}

// Ctrl-Z stops the run and then this process; both go on together.
void suspend_run(int) {
  const int error = errno;
  if (const pid_t group = run_state->group) kill(-group, SIGTSTP);
  struct sigaction stop = {}, before;
  stop.sa_handler = SIG_DFL;
  sigaction(SIGTSTP, &stop, &before);
  sigset_t unblocked, mask;
  sigemptyset(&unblocked);
  sigaddset(&unblocked, SIGTSTP);
  raise(SIGTSTP);
  sigprocmask(SIG_UNBLOCK, &unblocked, &mask);
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  sigaction(SIGTSTP, &before, nullptr);
  if (const pid_t group = run_state->group) kill(-group, SIGCONT);
  errno = error;
}

// Each run is a process group of its own and gets the signals from here, each one once, whether the
// terminal sent it to all or somebody to this process alone.
class RunSignals {
 public:
  RunSignals() {
    void* memory =
        mmap(nullptr, sizeof(RunState), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ABSL_CHECK(memory != MAP_FAILED) << "no memory";
    run_state = new (memory) RunState;
    for (Handled& each : handled_) {
      sigaction(each.signal, nullptr, &each.before);
      // As under nohup, or in the background of a shell without job control.
      if (each.before.sa_handler == SIG_IGN) continue;
      struct sigaction action = {};
      action.sa_handler = each.handler;
      action.sa_flags = SA_RESTART;
      sigaction(each.signal, &action, nullptr);
    }
  }
  ~RunSignals() {
    restore();
    munmap(run_state, sizeof(RunState));
    run_state = nullptr;
  }
  RunSignals(const RunSignals&) = delete;
  RunSignals& operator=(const RunSignals&) = delete;

  bool was_interrupted() const { return run_state->interrupts != 0; }

  // In the process of a run, before its program. Async-signal-safe.
  void enter_run() const {
    setpgid(0, 0);
    restore();
    run_state->group = getpid();
    if (was_interrupted()) _exit(kInterrupted);
  }
  void leave_run() const { run_state->group = 0; }

 private:
  struct Handled {
    int signal;
    void (*handler)(int);
    struct sigaction before;
  };

  void restore() const {
    for (const Handled& each : handled_) sigaction(each.signal, &each.before, nullptr);
  }

  Handled handled_[2] = {{SIGINT, &interrupt_run, {}}, {SIGTSTP, &suspend_run, {}}};
};

absl::StatusOr<ChildResult> run_seed(const SeedSweep& sweep, const std::string& program,
                                     uint64_t seed, const std::vector<std::string>& environment,
                                     const RunSignals& signals) {
  process::EnvironmentOverlay overlay = sweep.plan.process.environment;
  overlay[env::kSimulateSeed] = absl::StrCat(seed);
  if (const auto report = overlay.find(env::kSimulateReport);
      report != overlay.end() && report->second) {
    *report->second = absl::StrCat(*report->second, "/seed_", seed);
  }
  const process::ExecImage image(program, sweep.plan.process.argv,
                                 process::apply_overlay(environment, overlay));
  const pid_t parent = getpid();
  absl::StatusOr<ChildResult> result = run_in_child([&](int fd) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) return;
    signals.enter_run();
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    image.exec();
  });
  signals.leave_run();
  return result;
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
  const RunSignals signals;
  std::vector<uint64_t> failed;
  int exit_code = 0;
  uint64_t seed = sweep.seeds.first;
  for (; seed < sweep.seeds.end; ++seed) {
    const absl::Time start = absl::Now();
    const absl::StatusOr<ChildResult> run =
        run_seed(sweep, *program, seed, invocation.environment, signals);
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
    invocation.out << "seed " << seed << ": " << describe(*run) << took << "\n"
                   << tail_text(run->output) << std::flush;
    if (!invocation.out) return kExitLauncherFailed;
  }
  const uint64_t done = seed - sweep.seeds.first;
  std::string summary = absl::StrCat(done, done == 1 ? " seed" : " seeds",
                                     signals.was_interrupted() ? " before Ctrl-C, " : ", ");
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
  return signals.was_interrupted() ? kInterrupted : exit_code;
}

}  // namespace accelerate::launch::commands
