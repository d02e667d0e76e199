/// Models that are built without memory, and the values that they would have had.
///
/// Inside a ConstructionScope on "meta", new tensors have a shape and no memory. The operators that
/// make and fill them are recorded, and replayed later for some tensors or for all: the values are
/// bit-equal to those of a construction without the scope, in whatever order they are asked for.
///
/// What is recorded: each operator that a constructor calls itself, if it makes a tensor and leaves
/// the device open, or reads or writes a tensor that was so made. A tensor whose device is named,
/// as by a DefaultDeviceScope inside the scope, is made there at once.
/// Random numbers: those that the generators would have given. Recording does not advance a
/// generator; the last replay leaves it where the construction would have, if it is then as the
/// scope left it. A random operator that is not recorded draws at once, so all that
/// were recorded before it are drawn first. A tensor's numbers follow those of the tensors
/// before it, which are therefore drawn as well, each once and one tensor at a time; afterwards
/// the states in between are known (5 KB each on the CPU).
/// Memory: about half a kilobyte per operator, and the other tensors that the constructor read. A
/// record lives as long as one of its tensors has no values.
///
/// Mechanism: the storage of a recorded tensor holds its record, so it is found without a table,
/// also through views, ties and typed members. Tensors keep their identity when they get values.
/// Limits:  operators on recorded tensors after the scope are not recorded, and nothing is that
///          calls no operator, like set_data with a tensor from outside. A tensor of which LibTorch
///          makes a second one without an operator (variable_data) gets its values only together
///          with a module that holds it.
/// Errors:  c10::NotImplementedError naming an operator that needs values while there are none
///          (item, nonzero) or that LibTorch cannot run without memory. Its tensors must be made
///          inside a ConstructionScope on the CPU.
/// Threads: as OperatorModeScope. Replays take turns in a process. Threads that record at once and
///          share a generator have its numbers in the order in which they ask for them, as without
///          scopes. A thread without a scope must not use a generator of which another records.
///          Replaying an operator that makes floats of integers sets the process's default dtype
///          while it runs, if that has changed since.
/// Mirrors: torchdistx.deferred_init, in purpose.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "accelerate/operators/operator_mode.h"

namespace accelerate {

/// Puts new tensors on a device. Scopes nest; the innermost one decides, and those on "meta" that
/// are inside each other make one record.
class ConstructionScope {
 public:
  explicit ConstructionScope(c10::Device device);
  /// Errors: those of undo(), if it has replayed all tensors and random numbers are left to draw.
  ~ConstructionScope() noexcept(false);

  /// Gives tensors that were made in the scope, and that still live, the memory that they would
  /// have without it: those for which `wants` is true. Tensors that share memory still share it
  /// afterwards. Local. Errors: those of the operators; no tensor has changed then.
  void undo(const std::function<bool(const at::Tensor&)>& wants);

 private:
  class Handler;
  const std::shared_ptr<Handler> handler_;
  const OperatorModeScope in_thread_;
};

/// Whether the tensor is without values and those can be replayed, or are deferred (see
/// deferred_values.h): they take the place of the construction's in all that follows.
bool is_recorded(const at::Tensor& tensor);

/// The values of recorded tensors, in fresh memory: on `device`, else where the construction would
/// have put them. Tensors that share memory have results that do. The tensors stay as they are.
/// Local. Errors: c10::ValueError for a tensor that is not recorded, or if a tensor that the
/// constructor read has changed since; those of the operators and of DeferredValues::read.
std::vector<at::Tensor> recorded_values(const std::vector<at::Tensor>& tensors,
                                        std::optional<c10::Device> device = {});

/// Gives recorded tensors, and others that share their memory, their values. They stay the same
/// tensors. The same errors; no tensor has changed then.
/// `is_last`: what the scope drew besides is drawn, too, so that the generators are left as the
/// construction would have. That is so in any case when no tensor of the scope is without values.
void replay_construction(const std::vector<at::Tensor>& tensors,
                         std::optional<c10::Device> device = {}, bool is_last = false);

/// For who gives tensors their values piece by piece: what to call when all have them, so that the
/// generators are left as with `is_last`. \pre Called before the first piece. Local. Undefined
/// tensors and those that are not recorded make no difference.
std::function<void()> end_of_construction(const std::vector<at::Tensor>& tensors);

}  // namespace accelerate
