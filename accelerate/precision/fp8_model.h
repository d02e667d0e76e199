/// A model whose Linear layers are computed in fp8.
///
///   auto fp8 = Fp8Model::convert(*module, plan, group);
///   {
///     Fp8Model::Scope scope = fp8->forward_scope();
///     output = module->forward(input);
///   }
///   loss.backward();                      // outside of the scope
///
/// The module stays as it is: inside the scope the products of chosen weights are computed
/// otherwise (linear_mode.h), also where a function uses the weight of a chosen layer, but not
/// where a module of another type does what Linear does.
///
/// Which layers, and how:
///   TE     all Linear; delayed scaling, or blocks of 32; in training, and by option in evaluation.
///   MSAMP  all Linear; one scale per tensor, from the tensor itself.
///   AO     all Linear but the first and the last, or what the filter says; scales as with MSAMP;
///          in evaluation too.
/// A layer with a dimension that is no multiple of 16 stays in high precision. Layers that share
/// their weight are one.
///
/// Delayed scales are computed at the start of each training forward with gradients from what was
/// seen since the last one, backward passes included. That is the only collective, and one for all
/// layers. A pass without gradients (NoGradGuard, InferenceMode) leaves them alone.
/// Activation checkpointing computes layers again outside of the scope; whoever does that installs
/// current_operator_handlers() around it, as the library's own does.
/// Mirrors: accelerate utils/transformer_engine.py, convert_model, apply_fp8_autowrap and
///          contextual_fp8_autocast; utils/ao.py, convert_model_to_fp8_ao.
/// Threads: those of the module. The Fp8Model may go before the graph of a forward pass.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include "accelerate/config/fp8_kwargs.h"
#include "accelerate/operators/linear_mode.h"
#include "accelerate/precision/fp8_linear.h"

namespace c10d {
class ProcessGroup;
}  // namespace c10d

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace accelerate {

/// What became of a model's Linear layers.
struct Fp8Report {
  struct Skipped {
    std::string name;
    std::string reason;
  };

  FP8BackendType backend = FP8BackendType::kNo;
  /// By name, in module order.
  std::vector<std::string> converted;
  std::vector<Skipped> skipped;

  /// A line per layer.
  std::string to_string() const;
};

class Fp8Model : public LinearHandler, public std::enable_shared_from_this<Fp8Model> {
 public:
  /// Chooses the layers. Local. `module` is used as long as the result; `group` is where ranks
  /// agree on delayed scales, null for one rank alone.
  static std::shared_ptr<Fp8Model> convert(torch::nn::Module& module, const Fp8Plan& plan,
                                           c10::intrusive_ptr<c10d::ProcessGroup> group);
  static std::shared_ptr<Fp8Model> convert(torch::nn::Module& module, const Fp8Plan& plan);
  ~Fp8Model() override;

  const Fp8Report& report() const { return report_; }
  const Fp8Plan& plan() const { return plan_; }

  /// The weights that are used in fp8, in module order.
  const std::vector<at::Tensor>& weights() const { return weights_; }

  using Scope = OperatorModeScope;

  /// To be held around the module's forward. With delayed scaling, in training and with gradients,
  /// collective over the group, unless `agrees` is false: then this rank's scales follow its own
  /// values until the next forward that agrees. For passes that ranks do not all make, as on uneven
  /// inputs, and where communication is to be avoided, as in those that only accumulate.
  [[nodiscard]] Scope forward_scope(bool agrees = true);

  /// What delayed scaling knows; nothing with other recipes. Local.
  std::map<std::string, at::Tensor> state_dict() const;
  /// Errors: c10::ValueError naming what does not fit this model; nothing has changed then.
  void load_state_dict(const std::map<std::string, at::Tensor>& state);

  std::optional<at::Tensor> linear(const at::Tensor& input, const at::Tensor& weight,
                                   const at::Tensor& bias) override;

 private:
  Fp8Model(torch::nn::Module& module, const Fp8Plan& plan,
           c10::intrusive_ptr<c10d::ProcessGroup> group);
  void use_device();

  const torch::nn::Module& module_;
  const Fp8Plan plan_;
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  Fp8Report report_;
  std::vector<at::Tensor> weights_;  // keeps them, and so the keys of layers_, alive
  std::unordered_map<at::TensorImpl*, c10::intrusive_ptr<Fp8Layer>> layers_;
  std::shared_ptr<DelayedScales> scales_;
  std::optional<c10::Device> device_;
  bool takes_step_ = false;  // the latest pass
};

/// Whether any layer is computed as TransformerEngine, or torchao, would.
inline bool has_transformer_engine_layers(const Fp8Model& model) {
  return model.report().backend == FP8BackendType::kTe && !model.weights().empty();
}
inline bool has_ao_layers(const Fp8Model& model) {
  return model.report().backend == FP8BackendType::kAo && !model.weights().empty();
}

}  // namespace accelerate
