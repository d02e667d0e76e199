#include "launch/commands/simulated_run.h"

#include <sys/prctl.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace accelerate::launch::commands {
namespace {

constexpr size_t kShownLines = 20;

volatile sig_atomic_t interrupts = 0;
void note_interrupt(int) { interrupts = 1; }

}  // namespace

InterruptNote::InterruptNote() {
  interrupts = 0;
  struct sigaction action = {};
  action.sa_handler = &note_interrupt;
  sigaction(SIGINT, &action, &before_);
}

InterruptNote::~InterruptNote() { sigaction(SIGINT, &before_, nullptr); }

bool InterruptNote::was_interrupted() const { return interrupts != 0; }

absl::StatusOr<ChildResult> run_simulation(const plan::SimulationPlan& plan,
                                           const std::string& program,
                                           const process::EnvironmentOverlay& changes,
                                           absl::Span<const std::string> environment) {
  process::EnvironmentOverlay overlay = plan.process.environment;
  for (const auto& [name, value] : changes) overlay[name] = value;
  const process::ExecImage image(program, plan.process.argv,
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

std::string failure_text(const ChildResult& run) {
  if (run.signal != 0) return absl::StrCat("ended by signal ", run.signal);
  return absl::StrCat("failed with exit code ", run.exit_code);
}

std::string tail_text(absl::string_view output) {
  std::vector<absl::string_view> lines = absl::StrSplit(output, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  const size_t left_out = lines.size() > kShownLines ? lines.size() - kShownLines : 0;
  std::string text = left_out > 0 ? absl::StrCat("  | ... ", left_out, " more\n") : "";
  for (size_t i = left_out; i < lines.size(); ++i) absl::StrAppend(&text, "  | ", lines[i], "\n");
  return text;
}

}  // namespace accelerate::launch::commands
