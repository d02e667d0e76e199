#include "accelerate/process/run.h"

#include <dlfcn.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "accelerate/platform/environment.h"
#include "accelerate/process/real_runtime.h"
#include "accelerate/runtime/env_parsing.h"
#include "accelerate/runtime/host.h"
#include "accelerate/runtime/numa_affinity.h"
#include "accelerate/values/texts.h"

namespace accelerate {
namespace {

constexpr int kFailed = 1;
constexpr int kUsageError = 2;

std::vector<RunMode>& run_modes() {
  static auto* modes = new std::vector<RunMode>();
  return *modes;
}

}  // namespace

bool register_run_mode(RunMode mode) {
  run_modes().push_back(std::move(mode));
  return true;
}

namespace internal {

int run_real(int argc, char** argv, const TrainFunction& train, Environment environment,
             const std::function<void(const std::string& what)>& on_failure) {
  const std::optional<std::string> rank = environment.get(env::kRank);
  absl::StatusOr<std::unique_ptr<RealRuntime>> runtime =
      RealRuntime::from_environment(std::move(environment));
  if (!runtime.ok()) {
    // One of several ranks, which the launcher knows by this.
    on_failure((rank ? "rank " + *rank + " failed: " : "") +
               std::string(runtime.status().message()));
    return kUsageError;
  }
  RuntimeScope scope(**runtime);
  const Topology& topology = (*runtime)->topology();
  std::string failure;
  int code = kFailed;
  try {
    if (parse_flag_from_env("ACCELERATE_CPU_AFFINITY", false, (*runtime)->environment())) {
      set_numa_affinity(topology.local_rank);
    }
    code = train(argc, argv);
    if (code == 0) (*runtime)->leave();
  } catch (...) {
    failure = exception_text();
  }
  if (!failure.empty()) {
    code = kFailed;
    on_failure("rank " + std::to_string(topology.rank) + " failed: " + failure);
  } else if (code != 0) {
    failure = "returned " + std::to_string(code);
  }
  if (code != 0 && topology.world_size > 1) {
    (*runtime)->leave_failed(failure);
    // A group's destructor waits for its operations, which other ranks may no longer finish.
    std::fflush(nullptr);
    std::_Exit(code);
  }
  return code;
}

std::optional<int> run_in_mode(int argc, char** argv, const TrainFunction& train,
                               const Environment& environment) {
  for (const RunMode& mode : run_modes()) {
    if (environment.get(mode.variable)) return mode.run(argc, argv, train, environment);
  }
  return std::nullopt;
}

void restore_sighup_action(const Environment& environment) {
  if (environment.get("UCX_DEBUG_SIGNO")) return;
  struct sigaction action = {};
  if (sigaction(SIGHUP, nullptr, &action) != 0) return;
  if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) return;
  Dl_info handler = {};
  if (dladdr(reinterpret_cast<void*>(action.sa_handler), &handler) == 0) return;
  void* library = dlopen(handler.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return;
  // UCX warns if the signal is not its own, so only the library of the handler is asked.
  void* function = dlsym(library, "ucs_debug_disable_signal");
  Dl_info owner = {};
  if (function != nullptr && dladdr(function, &owner) != 0 &&
      owner.dli_fbase == handler.dli_fbase) {
    reinterpret_cast<void (*)(int signal)>(function)(SIGHUP);
  }
  dlclose(library);
}

}  // namespace internal

int run(int argc, char** argv, const TrainFunction& train) {
  Environment environment;
  internal::restore_sighup_action(environment);
  limit_intra_op_threads(environment);
  if (const auto code = internal::run_in_mode(argc, argv, train, environment)) return *code;
  if (environment.get(env::kSimulate)) {
    std::cerr << "accelerate: " << env::kSimulate << " is set, but " << internal::kLinkSimulator
              << std::endl;
    return kUsageError;
  }
  return internal::run_real(argc, argv, train, std::move(environment), [](const std::string& what) {
    // In one piece: ranks fail at the same time, and often write to the same terminal.
    std::cerr << "accelerate: " + what + "\n" << std::flush;
  });
}

}  // namespace accelerate
