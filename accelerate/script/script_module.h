/// Modules that torch.jit has written: what programs hold that got their model from Python.
///
///   torch::jit::Module net = torch::jit::load("net.pt");
///   torch::optim::SGD sgd(accelerate::parameters_of(net), 0.1);
///   auto [model, optimizer, loader] = accelerator.prepare(net, sgd, data);
///   torch::Tensor loss = torch::nll_loss(model(images).toTensor(), labels);
///   ...
///   net.save("trained.pt");
///
/// Accelerator::prepare makes a ScriptModule of it, a torch::nn::Module with the same tensors under
/// the names that PyTorch gives them, so that replicas, accumulation and checkpoints work as with
/// any module, and weights are exchanged with C++ modules of those names. Parameters and buffers
/// are those that the module has then: one that its code replaces by another tensor, in place of
/// changing it, is not seen. Other attributes are not part of a checkpoint.
///
/// The code of such a module is one graph, whose layers nothing else sees. So it is refused what
/// divides layers, computes them in another precision or records them: FSDP, DeepSpeed, all axes of
/// a mesh but dp_replicate, mixed precision, compilation.
/// Errors:  c10::ValueError for what is refused; c10::Error of the module's own code.
/// Threads: the rank's thread.
#pragma once

#include <concepts>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

namespace accelerate {

struct LayoutContext;
struct TechniqueContext;
class ModelLayout;

class ScriptModule : public torch::nn::Module {
 public:
  /// Shares the module's tensors and its mode, training or evaluation.
  explicit ScriptModule(torch::jit::Module script);

  /// Its forward method. What it returns is converted by `.toTensor()` and its kin.
  template <typename... Inputs>
    requires(std::constructible_from<c10::IValue, const Inputs&> && ...)
  c10::IValue forward(const Inputs&... inputs) {
    return script_.forward({c10::IValue(inputs)...});
  }

  /// The mode of all of its modules.
  void train(bool on = true) override;

  /// What torch.jit.save and others take; a handle of the same module.
  const torch::jit::Module& script() const { return script_; }

 private:
  torch::jit::Module script_;
};

/// The parameters, for an optimizer: the module's own, in its order. Local.
std::vector<at::Tensor> parameters_of(const torch::jit::Module& module);

/// Nothing, but for a model with a ScriptModule in it: errors, see above. The first is called
/// before the model is divided along a mesh, the second where all else is known of the job. Local.
std::shared_ptr<const ModelLayout> check_script_layout(const LayoutContext& context);
void check_script_model(const TechniqueContext& context);

}  // namespace accelerate
