#include "accelerate/quantization/models/load_and_quantize.h"

#include <algorithm>
#include <functional>
#include <map>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>
#include <torch/nn/module.h>

#include "absl/cleanup/cleanup.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "accelerate/big_model/load_checkpoint_in_model.h"
#include "accelerate/big_model/load_plan.h"
#include "accelerate/modules/module_state_dict.h"
#include "accelerate/modules/module_tensors.h"
#include "accelerate/plan/plan.h"
#include "accelerate/quantization/bnb_layout.h"
#include "accelerate/quantization/four_bit.h"
#include "accelerate/quantization/models/quantized_weight.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/state/logger.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate {
namespace {

using torch::nn::Module;

void append(std::vector<std::string>& to, const std::vector<std::string>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// The modules that a map with several entries has on the CPU or the disk.
std::vector<std::string> offloaded_modules(const LoadAndQuantizeOptions& options) {
  std::vector<std::string> modules;
  const auto* const map =
      options.device_map ? std::get_if<DeviceMap>(&*options.device_map) : nullptr;
  if (map == nullptr || map->size() <= 1) return modules;
  const bool on_host = Runtime::current().device().is_cpu();
  for (const auto& [name, placement] : map->entries()) {
    if (placement.is_disk() || (placement.is_cpu() && !on_host)) modules.push_back(name);
  }
  return modules;
}

// Parameters that are not quantised get their dtype; float where one of their names says so.
void convert_rest(const Module& model, const BnbQuantizationConfig& config) {
  std::vector<internal::ModuleSlot> slots = internal::module_slots(model);
  std::erase_if(slots, [](const internal::ModuleSlot& slot) {
    return slot.is_buffer || slot.made_parameter.defined() || !slot.tensor.is_floating_point();
  });
  absl::flat_hash_set<const c10::TensorImpl*> in_fp32;
  for (const internal::ModuleSlot& slot : slots) {
    const bool is_named = std::ranges::any_of(
        *config.keep_in_fp32_modules,
        [&](const std::string& name) { return absl::StrContains(slot.name, name); });
    if (is_named) in_fp32.insert(slot.tensor.unsafeGetTensorImpl());
  }
  for (const internal::ModuleSlot& slot : slots) {
    const bool stays_float = in_fp32.contains(slot.tensor.unsafeGetTensorImpl());
    const at::ScalarType dtype = stays_float ? at::kFloat : config.remaining_dtype();
    if (slot.tensor.scalar_type() == dtype) continue;
    internal::rebind(slot.tensor, slot.tensor.detach().to(dtype));
  }
}

// Says which blocks a text describes where the checkpoint has another number of their scales.
void check_scales(const std::string& name, const FourBitState& state,
                  const std::vector<internal::StoredTensor>& stored) {
  const auto found = std::ranges::find(stored, name + ".absmax", &internal::StoredTensor::name);
  if (found == stored.end()) return;
  const int64_t scales = c10::multiply_integers(found->sizes);
  const int64_t values = c10::multiply_integers(state.sizes);
  TORCH_CHECK_VALUE(scales == internal::blocks_of(values, state.block_size), "\"", found->name,
                    "\" has ", scales, " values: its state has ", values, " values in blocks of ",
                    state.block_size);
}

// Weights that the checkpoint has in 4 bits are kept as it describes them.
void follow_states(const Module& model, const std::vector<internal::StoredTensor>& stored,
                   const std::function<at::Tensor(const std::string& name)>& read) {
  std::map<std::string, std::string> states;
  for (const internal::StoredTensor& each : stored) {
    const std::string weight = weight_of_state(each.name);
    if (weight.empty()) continue;
    // As wrapped models save them.
    states.emplace(absl::StripPrefix(weight, "module."), each.name);
    states.insert_or_assign(weight, each.name);
  }
  for (const auto& item : model.named_parameters()) {
    const auto found = states.find(item.key());
    if (found == states.end() || quantized_bits(item.value()) != QuantizedBits::k4) continue;
    const FourBitState state = four_bit_state(found->second, read(found->second));
    match_stored_layout(item.value(), item.key(), state);
    check_scales(weight_of_state(found->second), state, stored);
  }
}

void check_loaded(const Module& model, const std::string& checkpoint,
                  const std::vector<std::string>& missing_keys) {
  std::vector<std::string> missing;
  for (const internal::ModuleSlot& slot : internal::module_slots(model)) {
    // Older versions of bitsandbytes do not write weight_format.
    if (slot.made_parameter.defined() && !absl::EndsWith(slot.name, "weight_format") &&
        std::ranges::find(missing_keys, slot.name) != missing_keys.end()) {
      missing.push_back(slot.name);
    }
  }
  TORCH_CHECK_VALUE(missing.empty(), "load_and_quantize_model: ", checkpoint,
                    " has no values for quantised weights: ", absl::StrJoin(missing, ", "));
  for (const auto& item : model.named_parameters()) check_quantized(item.value(), item.key());
}

// A quantised model is trained beside its weights, where it is.
void check_placement(const DispatchedModel& dispatched, const ModelPlan& plan) {
  if (!is_quantized(*dispatched.module())) return;
  const std::vector<DevicePlacement> placements = dispatched.device_map().placements();
  TORCH_CHECK_VALUE(placements.size() == 1 || plan.num_ranks == 1,
                    "You can't train a model that has been loaded in 8-bit or 4-bit precision on "
                    "multiple devices in any distributed mode. Rank ",
                    plan.rank, " is one of ", plan.num_ranks,
                    ": load the model on one device, or run one process.");
  const bool on_host = plan.device.is_cpu();
  for (const DevicePlacement& each : placements) {
    TORCH_CHECK_VALUE(
        !each.is_disk() && (!each.is_cpu() || on_host),
        "You can't train a model that has been loaded in 8-bit or 4-bit precision with "
        "CPU or disk offload: its device map has \"",
        each.text(), "\". Load it on devices, or prepare it with evaluation_mode.");
  }
  const std::optional<c10::Device> device = internal::device_of(placements.front());
  TORCH_CHECK_VALUE(placements.size() > 1 || check_device_same(*device, plan.device),
                    "You can't train a model that has been loaded in 8-bit or 4-bit precision on a "
                    "different device than the one you're training on: rank ",
                    plan.rank, " computes on ", plan.device, ", and the model is on ", *device,
                    ". Leave device_map out of load_and_quantize_model.");
}

}  // namespace

std::shared_ptr<DispatchedModel> internal::load_and_quantize(
    std::shared_ptr<Module> model, BnbQuantizationConfig config,
    const LoadAndQuantizeOptions& options) {
  TORCH_CHECK_VALUE(model != nullptr, "load_and_quantize_model: the model is null");
  TORCH_CHECK_VALUE(find_dispatched(*model) == nullptr,
                    "load_and_quantize_model: the model is dispatched already; free the result of "
                    "that call first");
  const at::NoGradGuard no_grad;
  config = resolve(std::move(config));
  if (!config.skip_modules) {
    config.skip_modules = get_keys_to_not_convert(*model, options.base_model_prefix);
  }
  if (config.load_in_4bit) append(*config.skip_modules, offloaded_modules(options));
  if (!config.keep_in_fp32_modules) config.keep_in_fp32_modules.emplace();
  append(*config.skip_modules, *config.keep_in_fp32_modules);

  const c10::Device device = get_parameter_device(*model);
  TORCH_CHECK_VALUE(!device.is_meta() || !options.weights_location.empty(),
                    "`weights_location` needs to be the folder path containing the weights of the "
                    "model, but the model is on the meta device and it is empty");
  TORCH_CHECK_VALUE(
      device.is_meta() || options.weights_location.empty(),
      "load_and_quantize_model: the model has values already, and \"", options.weights_location,
      "\" has others: build it in init_empty_weights(), or leave weights_location out");
  DispatchOptions dispatch{.offload_dir = options.offload_folder,
                           .operators = std::make_shared<QuantizedProducts>(config)};
  if (!device.is_meta()) {
    log_in_job(
        "accelerate.quantization", LogLevel::kWarning,
        "It is not recommended to quantize a loaded model. The model should be instantiated under "
        "the `init_empty_weights` context manager.");
    replace_with_bnb_layers(*model, config, *config.skip_modules);
    convert_rest(*model, config);
    const c10::Device own = Runtime::current().device();
    if (own.type() != device.type()) {
      log_in_job("accelerate.quantization", LogLevel::kInfo,
                 absl::StrCat("The model is on ", device.str(), " and moves to ", own.str()));
    }
    return DispatchedModel::make(std::move(model), rank_device_map(), std::move(dispatch));
  }
  // Sizes are those of the values, which the map's dtypes change.
  const DeviceMap map = get_quantized_model_device_map(
      *model, config, options.device_map, options.max_memory, options.no_split_module_classes);
  // Where an error ends this, an empty model's parameters are as before.
  struct Parameter {
    at::Tensor parameter, before;
    bool requires_grad;
  };
  std::vector<Parameter> parameters;
  for (const at::Tensor& each : model->parameters()) {
    if (each.is_meta()) parameters.push_back({each, each.detach(), each.requires_grad()});
  }
  absl::Cleanup empty_again = [&parameters] {
    for (const Parameter& each : parameters) {
      rebind(each.parameter, each.before);
      each.parameter.set_requires_grad(each.requires_grad);
    }
  };
  replace_with_bnb_layers(*model, config, *config.skip_modules);
  FileSystem& files = Runtime::current().files();
  LoadedCheckpoint loaded = load_checkpoint(
      files, *model, options.weights_location,
      {.device_map = map,
       .offload_folder = options.offload_folder,
       .dtype = config.remaining_dtype(),
       .offload_state_dict = options.offload_state_dict,
       .keep_in_fp32_modules = *config.keep_in_fp32_modules,
       .offload_8bit_bnb = config.load_in_8bit},
      [&](const auto& stored, const auto& read) { follow_states(*model, stored, read); });
  check_loaded(*model, options.weights_location, loaded.keys.missing_keys);
  dispatch.offload_index = std::move(loaded.offloaded);
  auto dispatched = DispatchedModel::make(std::move(model), map, std::move(dispatch));
  std::move(empty_again).Cancel();
  return dispatched;
}

const BnbQuantizationConfig* quantization_config(const Module& model) {
  const std::shared_ptr<DispatchedModel> dispatched = internal::find_dispatched(model);
  if (dispatched == nullptr) return nullptr;
  const auto* const products =
      dynamic_cast<const QuantizedProducts*>(dispatched->operators().get());
  return products == nullptr ? nullptr : &products->config();
}

bool is_loaded_in_8bit(const Module& model) {
  const BnbQuantizationConfig* const config = quantization_config(model);
  return config != nullptr && config->load_in_8bit;
}

bool is_loaded_in_4bit(const Module& model) {
  const BnbQuantizationConfig* const config = quantization_config(model);
  return config != nullptr && config->load_in_4bit;
}

bool is_quantized(const Module& model) { return quantization_config(model) != nullptr; }

void check_quantized_model(const TechniqueContext& context) {
  if (!context.trains) return;
  const torch::nn::Module& module = *context.model.module();
  for (const auto& item : module.named_parameters()) {
    TORCH_CHECK_VALUE(!item.value().requires_grad() || !quantized_bits(item.value()),
                      "prepare: parameter \"", item.key(),
                      "\" is quantised and requires gradients; quantised weights cannot be "
                      "trained: train adapters beside them");
  }
  for (const auto& each : internal::dispatched_within(module)) check_placement(*each, context.plan);
}

}  // namespace accelerate
