/// A recording of LibTorch's own profiler.
///
/// That is Kineto, in every build of LibTorch 2; it sees the operators of all threads that the
/// recording thread starts, and kernels where LibTorch was built with a vendor's tracing library.
/// There is one session per process: a second one, on any thread, would end the first and lose it.
/// It keeps no C++ stacks and no modules; an OperatorObserver beside it sees those of the rank's
/// thread, and both are joined, call by call.
/// Errors: c10::Error if somebody else's session runs.
/// Threads: one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "accelerate/config/profile_kwargs.h"
#include "accelerate/profiling/event.h"
#include "accelerate/profiling/module_names.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {

class KinetoSession {
 public:
  /// Makes ready; nothing is recorded yet. The arguments must outlive the session.
  KinetoSession(Runtime& runtime, const ProfileKwargs& kwargs, const ModuleNames& modules);
  /// Drops what was recorded.
  ~KinetoSession();
  KinetoSession(const KinetoSession&) = delete;
  KinetoSession& operator=(const KinetoSession&) = delete;

  void start();
  /// Ends the recording. Operators of one thread are in the order in which they began.
  std::vector<ProfileEvent> stop();

  /// After stop(): Kineto's trace in Chrome's format, with the rank as the process's name and
  /// modules and stacks beside operators.
  /// Errors: c10::Error if Kineto could not write it.
  std::string chrome_trace();

 private:
  class Impl;

  std::unique_ptr<Impl> impl_;
};

}  // namespace accelerate
