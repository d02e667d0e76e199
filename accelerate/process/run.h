/// The entry of a program: `int main(int argc, char** argv) { return accelerate::run(argc, argv,
/// train); }`.
///
/// `train` has the shape of main and is the program. It runs once per rank with that rank's Runtime
/// installed on its thread:
///   - started directly, or by `accelerate launch`, torchrun or the like: once in this process;
///   - under `accelerate launch --simulate 2x4`: once per simulated rank, in this process. The
///     program must link //simulator/run (with CMake: Accelerate::simulator) for that.
/// So `train` keeps no state outside itself.
///
/// Process-wide LibTorch settings: a rank gets one intra-op thread unless OMP_NUM_THREADS says
/// otherwise, because results differ in their last bits with the number of threads.
/// SIGHUP keeps its action where UCX took it (restore_sighup_action).
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "accelerate/platform/environment.h"

namespace accelerate {

/// Called with its own copy of the arguments. Its value is the rank's exit code.
using TrainFunction = std::function<int(int argc, char** argv)>;

/// Runs the program. Returns the exit code: 0 if every rank returned 0; the first failing rank's
/// code; 1 if a rank threw (its message goes to stderr with the rank's number); 2 for an
/// environment that makes no sense. A rank of several that failed ends its process here, without
/// destructors, so that it cannot wait for peers that wait for it.
int run(int argc, char** argv, const TrainFunction& train);

/// Another way to run a program than as one real rank, chosen by an environment variable.
struct RunMode {
  std::string variable;  ///< Its presence selects the mode.
  std::function<int(int argc, char** argv, const TrainFunction& train,
                    const Environment& environment)>
      run;
};

/// Called from static initialisers. The value only serves those.
bool register_run_mode(RunMode mode);

namespace internal {

/// The error of a program that was told to simulate and has no simulator.
inline constexpr char kLinkSimulator[] =
    "this program cannot simulate: link the simulator into it (with Bazel `//simulator/run`, from "
    "another workspace `@accelerate_cpp//simulator/run`; with CMake `Accelerate::simulator`)";

// The parts of `run`, for code that starts ranks by itself (accelerate/process/launchers.h).

/// Runs one real rank as `run` does, without looking for a mode. `on_failure` gets the reason of a
/// failure at once.
int run_real(int argc, char** argv, const TrainFunction& train, Environment environment,
             const std::function<void(const std::string& what)>& on_failure);

/// As `run` does it in the mode that a variable of `environment` asks for; nothing if none does.
std::optional<int> run_in_mode(int argc, char** argv, const TrainFunction& train,
                               const Environment& environment);

/// Gives SIGHUP the action that it had before UCX was loaded. Has no effect if UCX is not loaded,
/// if the program has a handler of its own, or if UCX_DEBUG_SIGNO says which signal UCX takes.
///
/// Open MPI, which Debian's LibTorch links, brings UCX along. UCX takes SIGHUP for its debugger as
/// soon as it is loaded, before main, in programs that never use MPI as well: a terminal that is
/// closed would not end them, and `nohup` would not keep it from starting the debugger.
/// Local. Process-wide; threads: any, but not while another one changes SIGHUP's action.
void restore_sighup_action(const Environment& environment);

}  // namespace internal
}  // namespace accelerate
