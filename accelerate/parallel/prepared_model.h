/// A user's model after `Accelerator::prepare`: called like the model, synchronised like its mode.
///
/// The module itself is untouched: `model->parameters()`, `model->train()` and whatever else it
/// offers are reached through `->`. Calls go through `model(input)` (or `model.forward(input)`), so
/// that gradients are synchronised; a call on the bare module is local to the rank.
/// A PreparedModel is a handle: copies are the same model.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "accelerate/operators/operator_mode.h"
#include "accelerate/parallel/ddp.h"
#include "accelerate/precision/autocast.h"
#include "accelerate/tensors/tree.h"
#include "accelerate/tensors/tree_operations.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace accelerate {

class Fp8Model;
struct Fp8Report;

/// The part of a prepared model that does not depend on its type.
class ModelState {
 public:
  explicit ModelState(std::shared_ptr<torch::nn::Module> module);
  ~ModelState();

  const std::shared_ptr<torch::nn::Module>& module() const { return module_; }

  /// Null where the model is not replicated: one rank, or prepared for evaluation only.
  DistributedDataParallel* ddp() const { return ddp_.get(); }
  void set_ddp(std::unique_ptr<DistributedDataParallel> ddp) { ddp_ = std::move(ddp); }

  /// What forward passes compute in; where that is set, half-precision results come as float32.
  const std::optional<AutocastSettings>& autocast() const { return autocast_; }
  void set_autocast(std::optional<AutocastSettings> settings) { autocast_ = settings; }

  /// Null where no layer is computed in fp8.
  const std::shared_ptr<Fp8Model>& fp8() const { return fp8_; }
  void set_fp8(std::shared_ptr<Fp8Model> fp8) { fp8_ = std::move(fp8); }
  const Fp8Report* fp8_report() const;

  /// Whether it was prepared to be trained.
  bool is_trained = false;
  /// Whether its gradients are reduced by an optimizer that steps during the backward pass.
  bool is_left_to_lomo = false;

 private:
  const std::shared_ptr<torch::nn::Module> module_;
  std::unique_ptr<DistributedDataParallel> ddp_;
  std::optional<AutocastSettings> autocast_;
  std::shared_ptr<Fp8Model> fp8_;
};

/// While it lives, operators compute in the model's precision. Collective where layers in fp8 agree
/// on their scales: in passes that synchronise.
class PrecisionScope {
 public:
  explicit PrecisionScope(const ModelState& model);

 private:
  AutocastScope autocast_;
  OperatorModeScope linear_;
};

template <typename Module>
class PreparedModel {
 public:
  PreparedModel(std::shared_ptr<Module> module, std::shared_ptr<ModelState> state)
      : module_(std::move(module)), state_(std::move(state)) {}

  /// The module's own forward, in the job's precision. Collective while gradients are synchronised.
  template <typename... Inputs>
  auto forward(Inputs&&... inputs) {
    TORCH_CHECK(module_ != nullptr, "this prepared model was freed");
    DistributedDataParallel* ddp = state_->ddp();
    if (ddp == nullptr) return compute(std::forward<Inputs>(inputs)...);
    ddp->before_forward();
    auto output = compute(std::forward<Inputs>(inputs)...);
    return after_forward(*ddp, std::move(output));
  }
  template <typename... Inputs>
  auto operator()(Inputs&&... inputs) {
    return forward(std::forward<Inputs>(inputs)...);
  }

  Module* operator->() const { return &**this; }
  Module& operator*() const {
    TORCH_CHECK(module_ != nullptr, "this prepared model was freed");
    return *module_;
  }

  /// The user's module, as it was given to prepare.
  const std::shared_ptr<Module>& module() const { return module_; }

  /// Which layers are computed in fp8, and why others are not; null in other precisions.
  const Fp8Report* fp8_report() const { return state_ ? state_->fp8_report() : nullptr; }

  /// Whether it was not reset.
  explicit operator bool() const { return module_ != nullptr; }
  /// Lets go of the model; the handle is of no use afterwards.
  void reset() {
    state_.reset();
    module_.reset();
  }

  /// For the library.
  const std::shared_ptr<ModelState>& state() const {
    TORCH_CHECK(state_ != nullptr, "this prepared model was freed");
    return state_;
  }

 private:
  template <typename... Inputs>
  auto compute(Inputs&&... inputs) {
    // fp8 comes with autocast.
    if (!state_->autocast()) return module_->forward(std::forward<Inputs>(inputs)...);
    auto output = [&] {
      PrecisionScope scope(*state_);
      return module_->forward(std::forward<Inputs>(inputs)...);
    }();
    return convert_to_fp32(std::move(output));
  }

  std::shared_ptr<Module> module_;
  std::shared_ptr<ModelState> state_;
};

}  // namespace accelerate
