/// Records what this rank's operators cost, for a scope.
///
///   Profiler profiler = accelerator.profile(
///       ProfileKwargs{.profile_memory = true, .output_trace_dir = "traces"});
///   train();
///   profiler.end();
///   accelerator.print(profiler.key_averages().table({.sort_by = "self_cpu_time_total"}));
///
/// With a schedule the program calls step() after each training step, and `on_trace_ready` gets
/// each cycle's recording. If the rank has its process to itself, LibTorch's profiler records.
/// Ranks that share a process, as in a simulation, are observed each by itself (OperatorObserver),
/// and all times are the Runtime's: the same run gives the same bytes.
///
/// Errors: c10::ValueError for bad options; c10::Error naming the rank if it is profiled already
///         (also by another user of LibTorch's profiler), and for a trace that cannot be written.
///         A scope that an exception leaves ends the recording, and neither writes nor waits.
/// Collective: end(), or the destructor where end() was not called, if there is an
///             output_trace_dir; everything else is local.
/// Threads: the rank's thread.
/// Mirrors: accelerate accelerator.py, Accelerator.profile; torch.profiler.profile.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/profiling/recording.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/state/partial_state.h"

namespace accelerate {

/// A profiler's action in a step. Mirrors: torch.profiler.schedule.
enum class ProfileAction {
  kNone,
  kWarmup,  ///< getting ready, so that the first recorded step does not pay for it
  kRecord,
  kRecordAndSave,  ///< the last recorded step of a cycle
};

/// `step` counts from 0. Without a schedule every step is kRecord: the recording ends with the
/// scope. The schedule has been checked.
ProfileAction profile_action(const std::optional<ProfileSchedule>& schedule, int64_t step);

class Profiler {
 public:
  /// Begins. `modules` are those to which `with_modules` ascribes operators. Local.
  explicit Profiler(PartialState& state, ProfileKwargs kwargs = {},
                    std::vector<std::shared_ptr<torch::nn::Module>> modules = {});
  /// As end(), unless an exception is being handled. Throws the errors of end().
  ~Profiler() noexcept(false);
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// Ends a training step. With a schedule, that decides whether the next one is recorded.
  void step();
  /// The number of steps that have ended.
  int64_t step_num() const;
  /// The action of the current step.
  ProfileAction current_action() const;

  /// Ends the last recording, hands it to `on_trace_ready`, and writes it if there is an
  /// output_trace_dir: all ranks wait for each other, and then those that failed throw. Once.
  void end();

  /// The recording that ended last; none if none did.
  const std::vector<ProfileEvent>& events() const;
  EventAverages key_averages(const KeyAverages& grouping = {}) const;
  /// Writes that recording; without one, a trace of nothing. Replaces what stood there.
  /// Errors: c10::Error naming path and rank.
  void export_chrome_trace(const std::string& path);

 private:
  class Impl;

  const std::unique_ptr<Impl> impl_;
};

}  // namespace accelerate
