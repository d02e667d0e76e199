/// One technique that is applied to a prepared model: replication, automatic mixed precision, fp8.
///
/// A prepared model has an ordered list of techniques. Each technique surrounds those after it and,
/// at last, the module's own forward pass:
///
///     void MyTechnique::forward(ForwardPass& pass) {
///       ...              // before the forward pass, inputs included; an exception ends the pass
///       pass.proceed();  // the techniques inside, and the module
///       ...              // after it, outputs included
///     }
///
/// so that what a technique sets up for the pass lives in this function's locals, and several
/// passes of one model may run at a time (nested ones, or on several threads where the techniques
/// allow it). A technique overrides the verbs it has a part in, and is added by a file in the room
/// that it belongs to and a row in the list of accelerate/techniques/. For a technique that only
/// surrounds passes that is all. Two kinds of techniques tell other code more:
///   - One that cuts tensors gives the model's layout to prepare (parallel/layout/model_layout.h).
///     Groups, norms, clipping, checkpoints and checks of equal values read the layout, and so do
///     the sums of partial gradients. Sharding, which divides rows alone, has trained() for that.
///   - One that computes operators in another way has a handler, whose place among the handlers of
///     other techniques is an OperatorOrder (operators/operator_mode.h).
///
/// No verb makes gradients final before they are read. Techniques reduce them during the backward
/// pass, where communication overlaps computation, so nothing is left to do for a model. What is
/// left belongs to optimizers, not to models: to divide by the scale of fp16, of which each
/// optimizer keeps account, and the averages of TPUs, which each optimizer takes of its own
/// parameters. An optimizer that reduces gradients itself (LOMO) only has to keep the techniques
/// from doing so, which is what no_sync_count is for.
/// Threads: the rank's thread, unless a technique says otherwise.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/tensors/state_dict.h"

namespace accelerate {

/// How many scopes keep a model's gradients from being synchronised; 0: they are synchronised.
using NoSyncCount = std::shared_ptr<int>;

/// A scope in which backward passes leave gradients on their rank: the models that it was made for
/// do not synchronise them while it lives. Scopes that overlap,
/// nested or not, are independent: a model synchronises again when the last one has ended. A model
/// may be freed before the scope ends. Without counts it does nothing.
/// Mirrors: accelerate accelerator.py, Accelerator.no_sync.
class NoSyncScope {
 public:
  using Counts = c10::SmallVector<NoSyncCount, 4>;

  explicit NoSyncScope(Counts counts = {}) : counts_(std::move(counts)) {
    for (const NoSyncCount& count : counts_) ++*count;
  }
  ~NoSyncScope() {
    for (const NoSyncCount& count : counts_) --*count;
  }
  NoSyncScope(NoSyncScope&& other) noexcept : counts_(std::exchange(other.counts_, {})) {}
  NoSyncScope(const NoSyncScope&) = delete;
  NoSyncScope& operator=(const NoSyncScope&) = delete;

 private:
  Counts counts_;
};

struct TensorPlacement;

/// A module's parameter, and the tensor that optimizers train in its place: itself, or this rank's
/// shard of it, [rows, ...].
struct TrainedParameter {
  std::string name;
  at::Tensor parameter;
  at::Tensor trained;
  // The rest is set by ModelState::trained() alone.
  /// The ranks of which each trains other rows of the parameter; null: each trains all rows.
  c10::intrusive_ptr<c10d::ProcessGroup> shards = nullptr;
  /// Where the parts of the tensor are of which the module has one as its parameter. It lives as
  /// long as the model is not prepared again. Null: nothing is known.
  const TensorPlacement* placement = nullptr;
  /// The ranks that together have each element of the model, for sums over all elements such as
  /// norms; null: this rank has all.
  c10::intrusive_ptr<c10d::ProcessGroup> norm = nullptr;
  /// Whether this rank's elements count in such a sum. Among ranks that have the same ones, those
  /// of the first count.
  bool counts = true;
};

struct Fp8Report;
class SwappedTensors;

/// Trained tensors that are on a disk between the steps of their optimizer, which keeps its state
/// for them there too (optim/state_on_disk.h).
struct TrainedOnDisk {
  std::shared_ptr<SwappedTensors> disk = nullptr;  ///< null: they are in memory
  /// To be called with each that the optimizer has changed, while it is in memory.
  std::function<void(const at::Tensor& trained)> updated = nullptr;
  /// The ranks that train the model; null for one.
  c10::intrusive_ptr<c10d::ProcessGroup> group = nullptr;
};

/// What is trained in place of a model's parameters.
struct TrainedInPlace {
  /// With their parameters, which some of them are themselves.
  std::vector<TrainedParameter> tensors = {};
  /// The ranks whose tensors make up the parameters; null where each rank's do.
  c10::intrusive_ptr<c10d::ProcessGroup> shards = nullptr;
  TrainedOnDisk on_disk = {};
  /// How many scopes will overwrite the tensors when they end.
  std::shared_ptr<const int> overwriting_scopes = nullptr;
  /// Gives the tensor of this place a gradient that ranks have reduced; undefined: none. Null where
  /// the tensors are not rows of their parameters.
  std::function<void(size_t place, at::Tensor gradient)> set_gradient = nullptr;
  /// Whether the parameters are whole now, the same on all ranks; null: always.
  std::function<bool()> has_all_rows = nullptr;
};

class ForwardCall;
class Joinable;
class Technique;
/// Outermost first.
using Techniques = std::vector<std::unique_ptr<Technique>>;

/// One forward pass on its way through the techniques of its model.
class ForwardPass {
 public:
  /// `techniques` and `call`, the module's forward, outlive the pass.
  ForwardPass(const Techniques& techniques, ForwardCall& call)
      : techniques_(techniques), call_(call) {}
  ForwardPass(const ForwardPass&) = delete;
  ForwardPass& operator=(const ForwardPass&) = delete;

  /// Runs the techniques inside the calling one, and the module's forward pass. A technique may
  /// call it several times, also after an exception.
  void proceed();

  /// The module's call, for the innermost technique, which may give it outputs in place of a run.
  ForwardCall& call() const { return call_; }

  /// The tensors among the inputs, in the order of the arguments and, inside of each, of
  /// tree_for_each. They may be undefined.
  std::vector<at::Tensor> inputs() const;
  /// What the techniques inside and the module get in their place, for the rest of the pass: as
  /// many tensors, of any shape. The caller's arguments stay as they are, but for those that
  /// forward takes by non-const reference; see forward_call.h.
  /// Errors: c10::Error for another number of tensors.
  void set_inputs(std::vector<at::Tensor> inputs);

  /// The tensors among the outputs, in the order of tree_for_each; others may take their place, as
  /// many as there are. Only after proceed().
  /// Errors: c10::Error for another number of tensors.
  std::vector<at::Tensor> outputs() const;
  void set_outputs(std::vector<at::Tensor> outputs);

  /// The dtype in which the module gets its floating-point inputs; absent: as inputs() has them.
  const std::optional<at::ScalarType>& input_dtype() const { return input_dtype_; }
  void set_input_dtype(std::optional<at::ScalarType> dtype) { input_dtype_ = dtype; }

  /// Whether all ranks make this pass and its backward pass synchronises gradients. An outer
  /// technique sets it for the techniques inside, which may be collective then.
  bool synchronises() const { return synchronises_; }
  void set_synchronises(bool synchronises) { synchronises_ = synchronises; }

 private:
  const Techniques& techniques_;
  ForwardCall& call_;
  size_t next_ = 0;
  bool synchronises_ = false;
  std::optional<at::ScalarType> input_dtype_;
};

class Technique {
 public:
  virtual ~Technique() = default;

  /// The name under which checkpoints have the technique's state. Without dots.
  virtual std::string_view name() const = 0;

  /// Surrounds a forward pass.
  virtual void forward(ForwardPass& pass) = 0;

  /// The count by which a NoSyncScope keeps this technique from synchronising gradients; null for a
  /// technique that never does. Local.
  virtual NoSyncCount no_sync_count() const { return nullptr; }

  /// Lets the next backward pass synchronise, although its forward pass ran in a NoSyncScope.
  /// Local.
  virtual void trigger_sync_in_backward() {}

  /// Surround a backward pass that begins at parameters, with gradients that code has made for
  /// them, so that no forward pass has prepared for it. `reduced`: the parameters from which it
  /// begins if it synchronises gradients, with what earlier passes have left on their rank; empty
  /// for a pass that leaves gradients on their rank. begin_adding is local; end_adding is
  /// collective where the ends of backward passes are.
  virtual void begin_adding(at::TensorList reduced) {
    if (!reduced.empty()) trigger_sync_in_backward();
  }
  virtual void end_adding() {}

  /// What is trained in place of the parameters; null for a technique that leaves the parameters as
  /// they are. It is the same as long as the technique lives. Local.
  virtual const TrainedInPlace* trained() const { return nullptr; }

  /// Throws if passes could not read on some rank what they used. Collective, where that may be.
  virtual void check_reads() {}

  /// This technique as one that a JoinScope takes in; null for a technique without collectives, or
  /// one that leaves out its collectives in passes that do not synchronise. Local.
  virtual Joinable* joinable() { return nullptr; }

  /// Which layers the technique computes in fp8; null for a technique that computes none. Local.
  virtual const Fp8Report* fp8_report() const { return nullptr; }

  /// A line about the passes so far, for reports of the model's layout; empty: none. Local.
  virtual std::string passes_text() const { return ""; }

  /// The state, besides the module's, with which this rank continues exactly; empty: none. Local.
  virtual StateDict state_dict() const { return {}; }
  /// `same_ranks`: whether as many ranks, in the same mesh, load the state as saved it.
  /// Errors: c10::ValueError for the state of another model.
  virtual void load_state_dict(const StateDict& state, bool same_ranks) {}
};

/// The technique of type T; null if there is none.
template <typename T>
T* find_technique(const Techniques& techniques) {
  for (const std::unique_ptr<Technique>& technique : techniques) {
    if (auto* found = dynamic_cast<T*>(technique.get())) return found;
  }
  return nullptr;
}

/// What one of the techniques trains in place of parameters; null if there is none.
inline const TrainedInPlace* in_place_of_parameters(const Techniques& techniques) {
  for (const std::unique_ptr<Technique>& technique : techniques) {
    if (const TrainedInPlace* trained = technique->trained()) return trained;
  }
  return nullptr;
}

}  // namespace accelerate
