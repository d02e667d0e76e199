#include "accelerate/quantization/models/quantized_layers.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include "absl/functional/overload.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "accelerate/base/enum_text.h"
#include "accelerate/big_model/infer_device_map.h"
#include "accelerate/big_model/offload.h"
#include "accelerate/modules/module_tensors.h"
#include "accelerate/modules/tied_parameters.h"
#include "accelerate/quantization/bnb_layout.h"
#include "accelerate/quantization/int8.h"
#include "accelerate/quantization/models/quantized_weight.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/state/logger.h"
#include "accelerate/values/dtypes.h"

namespace accelerate {
namespace {

using torch::nn::LinearImpl;
using torch::nn::Module;

bool contains(const std::vector<std::string>& texts, const std::string& text) {
  return std::ranges::find(texts, text) != texts.end();
}

void check_resolved(const BnbQuantizationConfig& config) {
  const bool is_resolved = std::holds_alternative<c10::ScalarType>(config.bnb_4bit_compute_dtype) &&
                           config.torch_dtype &&
                           std::holds_alternative<c10::ScalarType>(*config.torch_dtype);
  TORCH_CHECK_VALUE(is_resolved,
                    "the quantisation configuration was not checked: give resolve(config)");
}

class Layers {
 public:
  Layers(const BnbQuantizationConfig& config, const std::vector<std::string>& kept)
      : config_(config), kept_(kept) {}

  void visit(Module& module, const std::string& path) {
    for (const auto& child : module.named_children()) {
      if (!child.value()) continue;
      const std::string& name = child.key();
      const std::string below = path.empty() ? name : absl::StrCat(path, ".", name);
      if (auto* linear = child.value()->as<LinearImpl>();
          linear != nullptr && !is_kept(name, below)) {
        note(*linear, below);
      }
      visit(*child.value(), below);
    }
  }

  // Tensors of modules that stay as they are.
  void note_kept(const Module& module, const std::string& name, const std::string& path) {
    const bool is_quantised =
        !path.empty() && module.as<LinearImpl>() != nullptr && !is_kept(name, path);
    if (!is_quantised) {
      for (const at::Tensor& each : module.parameters(/*recurse=*/false)) {
        kept_tensors_.insert(each.unsafeGetTensorImpl());
      }
    }
    for (const auto& child : module.named_children()) {
      if (!child.value()) continue;
      note_kept(*child.value(), child.key(),
                path.empty() ? child.key() : absl::StrCat(path, ".", child.key()));
    }
  }

  // All layers, or none if one cannot be quantised.
  std::vector<BnbLayer> replace() {
    for (const Layer& each : found_) {
      if (each.is_first) check_quantizable_weight(each.linear->weight, each.weight_name(), config_);
    }
    std::vector<BnbLayer> layers;
    for (const Layer& each : found_) {
      const LinearImpl& linear = *each.linear;
      if (each.is_first) quantize_weight(linear.weight, each.weight_name(), config_);
      if (linear.bias.defined()) linear.bias.set_requires_grad(false);
      layers.push_back({.name = each.path,
                        .kind = config_.load_in_8bit ? "Linear8bitLt" : "Linear4bit",
                        .in_features = linear.weight.size(1),
                        .out_features = linear.weight.size(0),
                        .bias = linear.bias.defined()});
    }
    return layers;
  }

 private:
  bool is_kept(const std::string& name, const std::string& path) const {
    return contains(kept_, name) || std::ranges::any_of(kept_, [&](const std::string& key) {
             return key == path || absl::StrContains(path, absl::StrCat(key, "."));
           });
  }

  struct Layer {
    LinearImpl* linear;
    std::string path;
    bool is_first;  // a weight that layers share is quantised once

    std::string weight_name() const { return absl::StrCat(path, ".weight"); }
  };

  void note(LinearImpl& linear, const std::string& path) {
    // A weight shared with a module that is not quantised is not quantised either.
    if (kept_tensors_.contains(linear.weight.unsafeGetTensorImpl())) return;
    found_.push_back({&linear, path, seen_.insert(linear.weight.unsafeGetTensorImpl()).second});
  }

  const BnbQuantizationConfig& config_;
  const std::vector<std::string>& kept_;
  std::vector<Layer> found_;
  std::unordered_set<const c10::TensorImpl*> seen_, kept_tensors_;
};

DeviceMap inferred_map(const Module& model, const BnbQuantizationConfig& config,
                       const std::string& kind, std::optional<MaxMemory> limits,
                       const std::vector<std::string>& no_split_module_classes) {
  SizeOptions sizes{
      .dtype = std::visit(
          absl::Overload{[](c10::ScalarType dtype) { return dtype_name(dtype); },
                         [](CustomDtype dtype) { return std::string(to_string(dtype)); }},
          config.target_dtype())};
  const auto set_dtypes = [&](const std::optional<std::vector<std::string>>& modules,
                              c10::ScalarType dtype) {
    if (!modules) return;
    for (const auto& item : model.named_parameters()) {
      const bool is_one = std::ranges::any_of(
          *modules, [&](const std::string& name) { return absl::StrContains(item.key(), name); });
      if (is_one) sizes.special_dtypes[item.key()] = dtype_name(dtype);
    }
  };
  set_dtypes(config.skip_modules, config.remaining_dtype());
  set_dtypes(config.keep_in_fp32_modules, c10::kFloat);
  std::optional<DeviceMap> map = internal::infer_by_strategy(
      model, kind, std::move(limits),
      {.sizes = std::move(sizes), .no_split_module_classes = no_split_module_classes});
  TORCH_CHECK_VALUE(map,
                    "If passing a string for `device_map`, please choose 'auto', 'balanced', "
                    "'balanced_low_0' or 'sequential'.");
  return *std::move(map);
}

}  // namespace

std::vector<BnbLayer> replace_with_bnb_layers(
    Module& model, const BnbQuantizationConfig& bnb_quantization_config,
    const std::vector<std::string>& modules_to_not_convert,
    const std::vector<std::string>& current_key_name) {
  check_resolved(bnb_quantization_config);
  Layers layers(bnb_quantization_config, modules_to_not_convert);
  const std::string path = absl::StrJoin(current_key_name, ".");
  layers.note_kept(model, "", path);
  layers.visit(model, path);
  std::vector<BnbLayer> replaced = layers.replace();
  if (replaced.empty()) {
    log_in_job(
        "accelerate.quantization", LogLevel::kWarning,
        "You are loading your model in 8bit or 4bit but no linear modules were found in your "
        "model. "
        "this can happen for some architectures such as gpt2 that uses Conv1D instead of Linear "
        "layers. Please double check your model architecture, or submit an issue on github if you "
        "think this is a bug.");
  }
  return replaced;
}

std::vector<std::string> get_keys_to_not_convert(
    const Module& model, const std::optional<std::string>& base_model_prefix) {
  std::vector<std::string> keys;
  for (const std::vector<std::string>& group : find_tied_parameters(model)) {
    keys.insert(keys.end(), group.begin(), group.end());
  }
  const auto children = model.named_children();
  const bool is_base_model =
      base_model_prefix && !children.contains(*base_model_prefix) &&
      !model.named_parameters(/*recurse=*/false).contains(*base_model_prefix) &&
      !model.named_buffers(/*recurse=*/false).contains(*base_model_prefix);
  if (keys.empty() && is_base_model) return {};
  TORCH_CHECK_INDEX(!children.is_empty(),
                    "get_keys_to_not_convert: the model has no modules in it, so that there is no "
                    "last one");
  const std::string& last = children[children.size() - 1].key();
  if (!contains(keys, last)) keys.push_back(last);
  for (std::string& key : keys) absl::StrReplaceAll({{".weight", ""}, {".bias", ""}}, &key);
  return keys;
}

bool has_4bit_bnb_layers(const Module& model) {
  return std::ranges::any_of(model.parameters(), [](const at::Tensor& parameter) {
    return quantized_bits(parameter) == QuantizedBits::k4;
  });
}

c10::Device get_parameter_device(const Module& parameter) {
  const std::vector<at::Tensor> parameters = parameter.parameters();
  TORCH_CHECK_VALUE(!parameters.empty(), "get_parameter_device: the module has no parameters");
  return parameters.front().device();
}

DeviceMap internal::rank_device_map() {
  const c10::Device own = Runtime::current().device();
  DeviceMap map;
  map.set("", own.is_cpu() ? DevicePlacement::cpu()
                           : DevicePlacement::accelerator(own.has_index() ? own.index() : 0));
  return map;
}

DeviceMap get_quantized_model_device_map(const Module& model,
                                         const BnbQuantizationConfig& bnb_quantization_config,
                                         const std::optional<BnbDeviceMap>& device_map,
                                         const std::optional<MaxMemory>& max_memory,
                                         const std::vector<std::string>& no_split_module_classes) {
  const BnbQuantizationConfig& config = bnb_quantization_config;
  check_resolved(config);
  const c10::Device own = Runtime::current().device();
  if (!device_map) {
    log_in_job(
        "accelerate.quantization", LogLevel::kInfo,
        absl::StrCat("The device_map was not initialized: all of the model is on ", own.str()));
    return internal::rank_device_map();
  }
  const auto* const kind = std::get_if<std::string>(&*device_map);
  DeviceMap map = kind != nullptr
                      ? inferred_map(model, config, *kind, max_memory, no_split_module_classes)
                      : std::get<DeviceMap>(*device_map);
  const std::vector<std::string> none;
  const std::vector<std::string>& skipped = config.skip_modules ? *config.skip_modules : none;
  const std::vector<std::string>& in_fp32 =
      config.keep_in_fp32_modules ? *config.keep_in_fp32_modules : none;
  const bool offloads = std::ranges::any_of(map.entries(), [&](const DeviceMap::Entry& entry) {
    const auto& [name, placement] = entry;
    return (placement.is_disk() || (placement.is_cpu() && !own.is_cpu())) &&
           !contains(skipped, name) && !contains(in_fp32, name);
  });
  if (!offloads) return map;
  TORCH_CHECK_VALUE(
      !config.load_in_4bit,
      "Some modules are dispatched on the CPU or the disk. Make sure you have enough GPU RAM to "
      "fit "
      "the quantized model. If you want to dispatch the model on the CPU or the disk while keeping "
      "these modules in `torch_dtype`, you need to pass a custom `device_map` to "
      "`load_and_quantize_model`.");
  log_in_job("accelerate.quantization", LogLevel::kInfo,
             "Some modules are offloaded to the CPU or the disk. Note that these modules will be "
             "converted "
             "to 8-bit");
  return map;
}

void quantize_and_offload_8bit(Module& model, const at::Tensor& param,
                               const std::string& param_name, c10::ScalarType new_dtype,
                               const std::string& offload_folder, OffloadIndex& offload_index,
                               const at::Tensor& fp16_statistics) {
  const at::NoGradGuard no_grad;
  const auto parameters = model.named_parameters();
  const at::Tensor* const parameter = parameters.find(param_name);
  TORCH_CHECK_VALUE(parameter != nullptr, "quantize_and_offload_8bit: ", model.name(),
                    " has no parameter ", param_name);
  TORCH_CHECK_VALUE(param.defined() && param.sizes() == parameter->sizes(),
                    "quantize_and_offload_8bit: the values of ", param_name,
                    " have to be of shape ", parameter->sizes());
  const bool is_quantized = quantized_bits(*parameter) == QuantizedBits::k8;
  TORCH_CHECK_VALUE(is_quantized || !fp16_statistics.defined(),
                    "quantize_and_offload_8bit: ", param_name,
                    " is not kept in 8 bits, so there are no statistics of it");
  NamedTensors offloaded;
  if (!is_quantized) {
    offloaded.emplace_back(param_name, param.detach().to(new_dtype));
  } else {
    const Int8Weight weight =
        fp16_statistics.defined()
            ? Int8Weight{.data = param.detach(), .scb = fp16_statistics.detach().to(at::kFloat)}
            : quantize_rowwise(param.detach().to(new_dtype));
    const TensorsByName tensors = to_bnb(param_name, weight);
    int8_from_bnb(param_name, tensors);  // checks
    for (const auto& [name, tensor] : tensors) {
      if (!absl::EndsWith(name, "weight_format")) offloaded.emplace_back(name, tensor);
    }
  }
  FileSystem& files = Runtime::current().files();
  for (const auto& [name, tensor] : offloaded) {
    OffloadedTensor entry = offload_weight(files, tensor, name, offload_folder);
    std::erase_if(offload_index, [&](const auto& each) { return each.first == name; });
    offload_index.emplace_back(name, std::move(entry));
  }
  set_module_tensor_to_device(model, param_name, c10::kMeta, {.dtype = new_dtype});
}

}  // namespace accelerate
