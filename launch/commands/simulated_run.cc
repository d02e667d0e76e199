#include "launch/commands/simulated_run.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <new>
#include <system_error>
#include <utility>

#include "absl/log/absl_check.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "accelerate/base/json_text.h"
#include "accelerate/platform/environment.h"
#include "accelerate/platform/simulated_run.h"
#include "launch/process/replace_file.h"
#include "launch/settings/machine.h"

namespace accelerate::launcher::commands {
namespace {

constexpr char kName[] = "launch";
constexpr size_t kShownLines = 20;

// A disk without room for so much has none for a report.
constexpr size_t kTrialBytes = 64 << 10;

// What this process and that of a run tell each other. They share the memory, so a signal that
// comes while a run starts is seen by one of them.
struct RunState {
  std::atomic<pid_t> group = 0;       // the run's process group
  std::atomic<int> interruption = 0;  // the first SIGINT, SIGTERM or SIGHUP
};
static_assert(std::atomic<pid_t>::is_always_lock_free && std::atomic<int>::is_always_lock_free);
RunState* run_state = nullptr;

void interrupt_run(int signal) {
  const int error = errno;
  int earlier = 0;
  const bool is_first = run_state->interruption.compare_exchange_strong(earlier, signal);
  if (const pid_t group = run_state->group) kill(-group, is_first ? signal : SIGKILL);
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

}  // namespace

RunSignals::RunSignals()
    : handled_{{SIGINT, &interrupt_run, {}},
               {SIGTERM, &interrupt_run, {}},
               {SIGHUP, &interrupt_run, {}},
               {SIGTSTP, &suspend_run, {}}} {
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

RunSignals::~RunSignals() {
  restore();
  munmap(run_state, sizeof(RunState));
  run_state = nullptr;
}

bool RunSignals::was_interrupted() const { return run_state->interruption != 0; }

int RunSignals::exit_code() const { return 128 + run_state->interruption; }

const char* RunSignals::interruption() const {
  switch (run_state->interruption) {
    case SIGTERM: return "SIGTERM";
    case SIGHUP: return "SIGHUP";
    default: return "Ctrl-C";
  }
}

void RunSignals::enter_run() const {
  setpgid(0, 0);
  restore();
  run_state->group = getpid();
  if (was_interrupted()) _exit(exit_code());
}

void RunSignals::leave_run() const { run_state->group = 0; }

void RunSignals::restore() const {
  for (const Handled& each : handled_) sigaction(each.signal, &each.before, nullptr);
}

SimulationMark::SimulationMark() : file_(memfd_create("accelerate_simulation", MFD_CLOEXEC)) {
  std::string path = absl::StrCat("/proc/", getpid(), "/fd/", file_.get());
  if (file_.is_open() && access(path.c_str(), W_OK) == 0) path_ = std::move(path);
}

void SimulationMark::add_to(process::EnvironmentOverlay& changes) const {
  if (!path_.empty()) changes[env::kSimulateBegan] = path_;
}

bool SimulationMark::is_missing() const {
  struct stat info = {};
  return !path_.empty() && fstat(file_.get(), &info) == 0 && info.st_size == 0;
}

std::string report_of(const plan::SimulationPlan& plan, absl::Span<const std::string> environment) {
  return process::environment_value(process::apply_overlay(environment, plan.process.environment),
                                    env::kSimulateReport);
}

int check_simulated(const SimulationMark& mark, const plan::SimulationPlan& plan, bool is_quiet,
                    Invocation& invocation) {
  if (!mark.is_missing()) return 0;
  if (const std::string report = report_of(plan, invocation.environment); !report.empty()) {
    return fail(invocation, kName, absl::StrCat("no report in ", report, ": ", kNoSimulation));
  }
  if (!is_quiet)
    invocation.err << "accelerate " << called_name(invocation, kName) << ": note: " << kNoSimulation
                   << std::endl;
  return 0;
}

absl::Status prepare_report(const std::string& folder) {
  const std::string trial =
      (std::filesystem::path(folder) / absl::StrCat(".trial-", getpid())).string();
  const absl::Status written = write_result(trial, std::string(kTrialBytes, ' '));
  std::error_code ignored;
  std::filesystem::remove(trial, ignored);
  if (written.ok()) return written;
  return absl::Status(written.code(),
                      absl::StrCat("no report in ", folder, " is possible: ", written.message()));
}

std::optional<std::string> program_of_report(const std::string& folder) {
  const nlohmann::json summary =
      read_summary((std::filesystem::path(folder) / "summary.json").string());
  if (!summary.contains("program") || !summary["program"].is_string()) return std::nullopt;
  return std::filesystem::path(summary["program"].get<std::string>()).filename().string();
}

void report_below(const plan::SimulationPlan& plan, absl::string_view name,
                  process::EnvironmentOverlay& changes) {
  const process::EnvironmentOverlay& usual = plan.process.environment;
  const auto report = usual.find(env::kSimulateReport);
  if (report == usual.end() || !report->second) return;
  changes[env::kSimulateReport] = absl::StrCat(*report->second, "/", name);
}

absl::StatusOr<ChildResult> run_simulation(const plan::SimulationPlan& plan,
                                           const std::string& program,
                                           const process::EnvironmentOverlay& changes,
                                           absl::Span<const std::string> environment,
                                           const RunSignals& signals) {
  process::EnvironmentOverlay overlay = plan.process.environment;
  for (const auto& [name, value] : changes) overlay[name] = value;
  return run_collected(program, plan.process.argv, process::apply_overlay(environment, overlay),
                       signals);
}

absl::StatusOr<ChildResult> run_collected(const std::string& program,
                                          const std::vector<std::string>& argv,
                                          const std::vector<std::string>& environment,
                                          const RunSignals& signals) {
  const process::ExecImage image(program, argv, environment);
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

void clear_summary(const std::string& path) { std::ofstream(path, std::ios::trunc).close(); }

nlohmann::json read_summary(const std::string& path) {
  nlohmann::json summary = accelerate::internal::parse_json(settings::read_text(path).value_or(""),
                                                            /*allow_exceptions=*/false);
  return summary.is_object() ? summary : nlohmann::json();
}

std::string failure_text(const ChildResult& run) {
  if (run.signal != 0) return absl::StrCat("ended by signal ", run.signal);
  return absl::StrCat("failed with exit code ", run.exit_code);
}

std::string tail_text(const ChildResult& run) {
  std::vector<absl::string_view> lines = absl::StrSplit(run.output, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  const size_t left_out = lines.size() > kShownLines ? lines.size() - kShownLines : 0;
  std::string text = left_out > 0 ? absl::StrCat("  | ... ", left_out, " more\n") : "";
  if (run.left_out > 0) text = "  | ... more\n";
  for (size_t i = left_out; i < lines.size(); ++i) absl::StrAppend(&text, "  | ", lines[i], "\n");
  return text;
}

absl::Status write_result(const std::string& path, const std::string& text) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("cannot create the folder ", folder.string(), ": ", error.message()));
  }
  return process::replace_file(path, text, 0666);
}

}  // namespace accelerate::launcher::commands
