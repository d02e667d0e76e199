/// Records each operator that the calling thread runs: its times, its inputs, its module and stack.
///
/// It hooks into LibTorch where LibTorch's own profiler does (at::RecordFunction), but for one
/// thread, and asks the Runtime for the time: so it serves ranks that share a process and a virtual
/// clock. Beside LibTorch's profiler it adds modules and stacks, which that does not record. A
/// rank's backward pass is observed if it runs on the rank's thread, as in simulations and on CPUs.
///
/// Errors: none while it observes.
/// Threads: made, used and ended on one thread; one at a time there.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/strings/string_view.h"
#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/profiling/recording.h"
#include "accelerate/runtime/runtime.h"

namespace at {
enum class RecordScope : uint8_t;
}  // namespace at

namespace c10 {
class DebugInfoGuard;
}  // namespace c10

namespace accelerate {

/// The module of which a tensor is a parameter or buffer.
///
/// C++ modules have no hooks for calls, so an operator's module is found by its inputs: an operator
/// that uses "fc1.weight", or a view of it, belongs to "fc1". Operators that use no parameter (an
/// activation, a loss) have no module.
/// Threads: immutable; any.
class ModuleNames {
 public:
  ModuleNames() = default;
  /// The names within each module; of a parameter that several share, the first one's.
  /// A parameter of the module itself is under the name of its class.
  explicit ModuleNames(const std::vector<std::shared_ptr<torch::nn::Module>>& modules);

  /// Empty if the tensor belongs to none.
  const std::string& of(const at::Tensor& tensor) const;

 private:
  // A view has its parameter's storage; a parameter that was moved has another than it had.
  std::unordered_map<const c10::TensorImpl*, std::string> name_by_tensor_;
  std::unordered_map<const c10::StorageImpl*, std::string> name_by_storage_;
};

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

  /// Stops observing; unfinished operators end now. Events are in the order in which they began,
  /// those of devices last.
  std::vector<ProfileEvent> finish();

 private:
  class Session;

  std::shared_ptr<Session> session_;  // null: finished
  std::unique_ptr<c10::DebugInfoGuard> memory_reports_;
};

/// The kind of a call, by LibTorch's scope and name.
ProfileEvent::Kind event_kind(at::RecordScope scope, absl::string_view name);

/// Gives nodes of the backward pass the module of the operator that they differentiate, and
/// operators the module of what they are part of.
void propagate_modules(std::vector<ProfileEvent>& events);

}  // namespace accelerate
