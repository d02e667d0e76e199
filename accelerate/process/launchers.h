/// A function as the ranks of a job, started from within a running program: a notebook kernel, a
/// test, a tool that trains now and then. A program that only trains uses accelerate/process/run.h
/// and is started by `accelerate launch`.
///
/// The ranks are forks of this process, so the function finds everything the program had made. What
/// a rank makes is its own, and gone at its end: results leave by files, or on rank 0's way to the
/// caller's.
/// Threads: call on a process's only thread. A fork takes no other thread along, and LibTorch would
///          wait for its own.
/// Mirrors: accelerate launchers.py, notebook_launcher (here launch) and debug_launcher (here
///          debug_launch). Differences: accelerate/docs/differences.md.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "accelerate/base/enums.h"

namespace accelerate {

struct LaunchOptions {
  /// Ranks on this machine. Unset: one for each accelerator, at least one.
  std::optional<int> num_processes;
  PrecisionType mixed_precision = PrecisionType::kNo;
  /// The port of the rendezvous; 0: any free port.
  uint16_t use_port = 0;
  /// Address of the first machine.
  std::string master_addr = "127.0.0.1";
  int node_rank = 0;
  int num_nodes = 1;
  /// How often all ranks are started anew after one failed.
  int max_restarts = 0;
  /// Ranks compute on the CPU even where there are accelerators.
  bool use_cpu = false;
  /// A cluster, as in "2x4:h100": the ranks are simulated in this process instead, and
  /// `num_processes`, ports and addresses have no meaning. Needs //simulator/run. The same happens
  /// where ACCELERATE_SIMULATE is set, so that one program serves both.
  std::string simulate;
  uint64_t simulate_seed = 0;
  /// "real", or "shapes": times and memory without the values of large tensors.
  std::string simulate_numerics = "real";
  /// "error" or "nan": what reading a value gives that was not computed.
  std::string simulate_unknown_values = "error";
  /// Executes one rank of each class of ranks that do the same; needs "shapes".
  bool simulate_fold = false;
};

/// Runs `function` once per rank, and returns when all have ended. A single rank is this process
/// itself.
/// Errors: c10::ValueError for options that make no sense and for a port that is taken; c10::Error
///         naming the first rank that failed and why, when the others have been stopped; also where
///         this process is a rank already, or has other threads.
void launch(const std::function<void()>& function, const LaunchOptions& options = {});

/// The same on CPUs, with full precision. For tests.
inline void debug_launch(const std::function<void()>& function, int num_processes = 2) {
  launch(function, {.num_processes = num_processes, .use_cpu = true});
}

}  // namespace accelerate
