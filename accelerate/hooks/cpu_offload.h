/// Models of a pipeline that share a device: each is on the device while it is used, else on the
/// host.
///
///   auto [encoder, encoder_hook] = cpu_offload_with_hook(encoder_net, device);
///   auto [denoiser, denoiser_hook] = cpu_offload_with_hook(denoiser_net, device, encoder_hook);
///   at::Tensor x = encoder(text);                     // the encoder comes to the device
///   for (int i = 0; i < 50; ++i) x = denoiser(x);     // it goes, and the denoiser stays
///   denoiser_hook.offload();
///
/// A model moves as a whole, and only when another one needs the device, which costs less than
/// bringing parts of it for each pass. Parameters that are stored in a narrow dtype
/// (layerwise_casting.h) move in it.
/// Errors: those of the copies; a model is on one device then, the one where it was.
/// Local. Threads: as model_hook.h.
/// Mirrors: accelerate hooks.py, CpuOffload and UserCpuOffloadHook, and big_modeling.py,
///          cpu_offload_with_hook.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include <c10/core/Device.h>

#include "accelerate/hooks/attach_hook.h"
#include "accelerate/hooks/hooked.h"
#include "accelerate/hooks/model_hook.h"

namespace accelerate {

/// A model and its offload, for programs. Copies are the same.
class UserCpuOffloadHook {
 public:
  /// `module`: the model, alive as long as `model`.
  UserCpuOffloadHook(std::shared_ptr<torch::nn::Module> model, std::shared_ptr<HookSlot> slot,
                     std::shared_ptr<ModelHook> hook);

  /// Moves the model to the host.
  void offload() const;
  /// Detaches the hook. The model stays where it is.
  void remove() const;

  torch::nn::Module& model() const { return *model_; }

 private:
  std::shared_ptr<torch::nn::Module> model_;
  std::shared_ptr<HookSlot> slot_;
  std::shared_ptr<ModelHook> hook_;
};

/// Moves a model to the host when it is attached, and to the execution device for a forward pass.
class CpuOffload final : public ModelHook {
 public:
  /// Without a device that of the current Runtime. `prev_module_hook`: whose model leaves the
  /// device before this one's forward pass.
  explicit CpuOffload(std::optional<c10::Device> execution_device = std::nullopt,
                      std::optional<UserCpuOffloadHook> prev_module_hook = std::nullopt);

  void init_hook(torch::nn::Module& module) override;
  /// The arguments go to the device as well.
  void pre_forward(torch::nn::Module& module, ForwardValues& arguments) override;

  c10::Device execution_device() const { return execution_device_; }

 private:
  const c10::Device execution_device_;
  const std::optional<UserCpuOffloadHook> prev_module_hook_;
};

template <typename Module>
struct ModelWithOffload {
  HookedModel<Module> model;
  UserCpuOffloadHook hook;
};

/// Moves the model to the host, and gives back what brings it to the device when it is called, and
/// a hook for the next model. The model needs no hooks of its own.
template <typename Module>
ModelWithOffload<Module> cpu_offload_with_hook(
    HookedModel<Module> model, std::optional<c10::Device> execution_device = std::nullopt,
    std::optional<UserCpuOffloadHook> prev_module_hook = std::nullopt) {
  auto hook = std::make_shared<CpuOffload>(execution_device, std::move(prev_module_hook));
  add_hook_to_module(model, hook, /*append=*/true);
  UserCpuOffloadHook for_user(model.module(), model.hooks(), std::move(hook));
  return {std::move(model), std::move(for_user)};
}
/// The same for a module, as a pointer or in what TORCH_MODULE makes.
template <typename Module>
  requires requires(const Module& module) { HookedModel(module); }
auto cpu_offload_with_hook(const Module& model,
                           std::optional<c10::Device> execution_device = std::nullopt,
                           std::optional<UserCpuOffloadHook> prev_module_hook = std::nullopt) {
  return cpu_offload_with_hook(HookedModel(model), execution_device, std::move(prev_module_hook));
}

}  // namespace accelerate
