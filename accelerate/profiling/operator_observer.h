/// Sees each operator that the calling thread runs, and writes down when, with what, and for whom.
///
/// It hooks into LibTorch where LibTorch's own profiler does (at::RecordFunction), but for one
/// thread, and asks the Runtime for the time: so it serves ranks that share a process and a virtual
/// clock. Beside LibTorch's profiler it contributes what that does not know: modules and stacks.
/// A rank's backward pass is seen where it runs on the rank's thread, as in simulations and on
/// CPUs.
///
/// Errors: none while it observes.
/// Threads: made, used and ended on one thread; one at a time there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "accelerate/profiling/event.h"
#include "accelerate/profiling/module_names.h"
#include "accelerate/runtime/runtime.h"

namespace at {
enum class RecordScope : uint8_t;
}  // namespace at

namespace c10 {
class DebugInfoGuard;
}  // namespace c10

namespace accelerate {

struct OperatorObserverOptions {
  bool operators = true;
  bool device_work = false;
  bool shapes = false;
  bool memory = false;
  bool flops = false;
  bool stack = false;
  /// Null: operators are not ascribed to modules. Must outlive the observer.
  const ModuleNames* modules = nullptr;
};

class OperatorObserver {
 public:
  OperatorObserver(Runtime& runtime, const OperatorObserverOptions& options);
  ~OperatorObserver();
  OperatorObserver(const OperatorObserver&) = delete;
  OperatorObserver& operator=(const OperatorObserver&) = delete;

  /// Stops observing. What began and did not end, ends now. Events are in the order in which they
  /// began, those of devices last.
  std::vector<ProfileEvent> finish();

 private:
  class Session;

  std::shared_ptr<Session> session_;  // null: finished
  std::unique_ptr<c10::DebugInfoGuard> memory_reports_;
};

/// What LibTorch's scope and name of a call say it is.
ProfileEvent::Kind event_kind(at::RecordScope scope, absl::string_view name);

/// Gives nodes of the backward pass the module of the operator that they differentiate, and
/// operators the module of what they are part of.
void spread_modules(std::vector<ProfileEvent>& events);

}  // namespace accelerate
