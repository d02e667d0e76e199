/// A model whose Linear layers have their weights in 8 or 4 bits.
///
///     auto net = [&] { const EmptyInit empty = init_empty_weights(); return Lm(options); }();
///     auto model = load_and_quantize_model(net, {.load_in_4bit = true},
///                                          {.weights_location = "checkpoint"});
///     const torch::Tensor logits = model(tokens);
///
/// The model is empty, and each weight is quantised as it is read: memory is for what is kept, and
/// 64 MiB of weights, or one that is larger, on the host. A checkpoint may also have quantised
/// weights under bitsandbytes' names, as save_model writes them of such a model. Those in 4 bits
/// are kept as it describes them, whatever the configuration's type, double quantisation and block
/// size. A model that has values already is quantised where it is, and moves to the rank's device;
/// its buffers keep their dtypes, it has no weights_location, and its device_map has no effect, as
/// in HF Accelerate.
///
/// The result is that of dispatch_model: the model is called through it, or prepared, and its
/// modules are where the device map says. Weights in 8 bits may be on the CPU and in files; only
/// their codes are copied then. Modules that the map puts there are not quantised in 4 bits, as in
/// HF Accelerate.
///
/// Quantised weights are not trained; what is beside them, such as adapters, may be, and gradients
/// pass through quantised layers.
///
/// Errors:  c10::ValueError of the configuration, of maps, and for a checkpoint that lacks a
///          quantised weight; else as load_checkpoint_and_dispatch.
/// Local. Threads: the rank's thread.
/// Mirrors: accelerate utils/bnb.py, load_and_quantize_model.
/// Differs: no layer is replaced and any device will do; see accelerate/docs/differences.md.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/pimpl.h>

#include "accelerate/device_map/max_memory.h"
#include "accelerate/dispatch/dispatch.h"
#include "accelerate/quantization/bnb_config.h"
#include "accelerate/quantization/models/quantized_layers.h"

namespace accelerate {

struct TechniqueContext;

struct LoadAndQuantizeOptions {
  /// A checkpoint, as for load_checkpoint_in_model. Empty: the model has its values.
  std::string weights_location = {};
  /// Absent: all on the rank's device.
  std::optional<BnbDeviceMap> device_map = std::nullopt;
  std::vector<std::string> no_split_module_classes = {};
  /// The limits of an inferred map; absent: what is free.
  std::optional<MaxMemory> max_memory = std::nullopt;
  std::string offload_folder = {};
  /// No effect, as in load_checkpoint_in_model.
  bool offload_state_dict = false;
  /// As in get_keys_to_not_convert.
  std::optional<std::string> base_model_prefix = std::nullopt;
};

namespace internal {

std::shared_ptr<DispatchedModel> load_and_quantize(std::shared_ptr<torch::nn::Module> model,
                                                   BnbQuantizationConfig config,
                                                   const LoadAndQuantizeOptions& options);

}  // namespace internal

/// Local.
template <typename Module>
[[nodiscard]] Dispatched<Module> load_and_quantize_model(
    const std::shared_ptr<Module>& model, BnbQuantizationConfig bnb_quantization_config,
    const LoadAndQuantizeOptions& options = {}) {
  return {model, internal::load_and_quantize(model, std::move(bnb_quantization_config), options)};
}
template <typename Module>
[[nodiscard]] Dispatched<Module> load_and_quantize_model(
    const torch::nn::ModuleHolder<Module>& model, BnbQuantizationConfig bnb_quantization_config,
    const LoadAndQuantizeOptions& options = {}) {
  return load_and_quantize_model(model.ptr(), std::move(bnb_quantization_config), options);
}

/// The configuration with which the model was quantised, its lists as they were used; null for
/// another model, or where its handle is gone.
const BnbQuantizationConfig* quantization_config(const torch::nn::Module& model);
bool is_loaded_in_8bit(const torch::nn::Module& model);
bool is_loaded_in_4bit(const torch::nn::Module& model);
bool is_quantized(const torch::nn::Module& model);

/// What a model that is prepared to be trained may be: its codes are frozen, and what is beside
/// them, such as adapters, is trained where they are. Local.
/// Errors: c10::ValueError for a quantised parameter that requires gradients, by name; for a
///         quantised model that is on the host or the disk in a job on devices, on several devices
///         in a job of several ranks, or on another device than the rank's. They name the rank or
///         the placement.
void check_quantized_model(const TechniqueContext& context);

}  // namespace accelerate
