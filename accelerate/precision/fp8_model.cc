#include "accelerate/precision/fp8_model.h"

#include <algorithm>
#include <unordered_set>

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/linear.h>

#include "absl/strings/str_cat.h"
#include "accelerate/operators/operator_mode.h"
#include "accelerate/precision/plain_operators.h"
#include "accelerate/report/availability.h"

namespace accelerate {

using internal::PlainOperators;

namespace {

// Devices that multiply fp8 want dimensions of multiples of 16.
constexpr int64_t kAlignment = 16;

// ---- One layer.

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Zeros up to multiples of 16, row by row.
Tensor aligned(const Tensor& data) {
  const auto missing = [&](int64_t dim) {
    return (kAlignment - data.size(dim) % kAlignment) % kAlignment;
  };
  const int64_t rows = missing(0), cols = missing(1);
  if (rows == 0 && cols == 0) return data.contiguous();
  // Zero is the byte 0 in both formats.
  return at::constant_pad_nd(data.view(at::kByte), {0, cols, 0, rows}).view(data.scalar_type());
}

Tensor finish(Tensor product, const Tensor& bias, at::ScalarType output) {
  if (bias.defined()) product += bias;
  return product.to(output);
}

at::ScalarType high_precision(const Tensor& input) {
  const c10::DeviceType type = input.device().type();
  const bool casts = at::autocast::is_autocast_available(type) &&
                     at::autocast::is_autocast_enabled(type) && input.is_floating_point() &&
                     input.scalar_type() != at::kDouble;
  return casts ? at::autocast::get_autocast_dtype(type) : input.scalar_type();
}

// One application of a layer.
class Product {
 public:
  Product(const Fp8Layer& layer, bool records) : layer_(layer), records_(records) {}

  bool in_blocks() const { return layer_.recipe.scaling == Fp8Scaling::kBlocks; }

  Fp8Tensor quantize(const Tensor& tensor, Fp8Role role) const {
    const at::ScalarType format = format_of(role);
    if (layer_.recipe.scaling == Fp8Scaling::kCurrent) return fp8_quantize(tensor, format);
    const Tensor amax = fp8_amax(tensor);
    if (records_) layer_.scales->record(layer_.index, role, amax);
    return fp8_quantize(tensor, layer_.scales->scale(layer_.index, role), amax, format);
  }

  // The scale of the next quantize(); undefined where it is the tensor's own.
  Tensor scale(Fp8Role role) const {
    return layer_.recipe.scaling == Fp8Scaling::kDelayed ? layer_.scales->scale(layer_.index, role)
                                                         : Tensor();
  }
  // A weight in the forward pass.
  Fp8Tensor quantize_weight(const Tensor& weight) const {
    return layer_.gathered.data.defined() ? layer_.gathered : quantize(weight, Fp8Role::kWeight);
  }
  // The same in the backward pass, with the scale of the forward pass.
  Fp8Tensor quantize_again(const Tensor& weight, const Tensor& scale) const {
    if (!scale.defined()) return quantize(weight, Fp8Role::kWeight);
    return fp8_quantize(weight, scale, fp8_amax(weight), kE4M3);
  }

  // a x b^T + bias in type `output`: sums and scaling in float32, one rounding at the end.
  Tensor matmul(const Fp8Tensor& a, const Fp8Tensor& b, const Tensor& bias,
                at::ScalarType output) const {
    if (!layer_.native) {
      Tensor product = at::mm(a.data.to(at::kFloat), b.data.to(at::kFloat).t());
      return finish(product.mul_(a.inverse_scale * b.inverse_scale), bias, output);
    }
    const Tensor product =
        at::_scaled_mm(aligned(a.data), aligned(b.data).t(), a.inverse_scale, b.inverse_scale,
                       /*bias=*/{}, /*scale_result=*/{}, at::kFloat);
    return finish(product.narrow(0, 0, a.data.size(0)).narrow(1, 0, b.data.size(0)), bias, output);
  }

  // a [M, K] x b [N, K]^T in blocks along K; `role` is a's.
  Tensor matmul_in_blocks(const Tensor& a, Fp8Role role, const Tensor& b, const Tensor& bias,
                          at::ScalarType output) const {
    return finish(at::mm(mx_quantize(a, format_of(role)).dequantize(),
                         mx_quantize(b, kE4M3).dequantize().t()),
                  bias, output);
  }

 private:
  at::ScalarType format_of(Fp8Role role) const {
    return role == Fp8Role::kGradient ? layer_.recipe.gradient_format : kE4M3;
  }

  const Fp8Layer& layer_;
  const bool records_;
};

Fp8Tensor transposed(const Fp8Tensor& tensor) { return {tensor.data.t(), tensor.inverse_scale}; }

// Positions of saved tensors. A weight or input in fp8 is undefined if it was not quantised.
// kWeightScale: with which a weight that is sharded is quantised again; undefined where the scale
// is its own.
enum Saved {
  kWeight,
  kInput,
  kFp8Weight,
  kFp8WeightScale,
  kFp8Input,
  kFp8InputScale,
  kWeightScale,
  kNumSaved
};

Fp8Tensor fp8_at(const variable_list& saved, Saved place) {
  return {saved[static_cast<size_t>(place)], saved[static_cast<size_t>(place) + 1]};
}

struct Fp8LinearFunction : torch::autograd::Function<Fp8LinearFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& input, const Tensor& weight,
                        const std::optional<Tensor>& bias,
                        const c10::intrusive_ptr<Fp8Layer>& layer, bool records) {
    const at::ScalarType type = high_precision(input);
    const PlainOperators plain;
    const Product product(*layer, records);
    const Fp8Recipe& recipe = layer->recipe;
    const Tensor rows = input.to(type).reshape({-1, weight.size(1)});
    variable_list saved(kNumSaved);
    const bool dgrad = input.requires_grad(), wgrad = weight.requires_grad();

    Tensor output;
    if (recipe.override_fprop) {
      const Tensor cast_bias = bias ? bias->to(type) : Tensor();
      output = at::linear(input.to(type), weight.to(type), cast_bias);
    } else if (product.in_blocks()) {
      output =
          product.matmul_in_blocks(rows, Fp8Role::kInput, weight, bias.value_or(Tensor()), type);
    } else {
      const Fp8Tensor fp8_input = product.quantize(rows, Fp8Role::kInput);
      const Fp8Tensor fp8_weight = product.quantize_weight(weight);
      output = product.matmul(fp8_input, fp8_weight, bias.value_or(Tensor()), type);
      const bool is_gathered = layer->gathered.data.defined();
      if (dgrad && layer->is_sharded && !is_gathered) {
        saved[kWeightScale] = product.scale(Fp8Role::kWeight);
      } else if (dgrad && !recipe.override_dgrad) {
        saved[kFp8Weight] = fp8_weight.data;
        saved[kFp8WeightScale] = fp8_weight.inverse_scale;
      }
      if (wgrad && !recipe.override_wgrad) {
        saved[kFp8Input] = fp8_input.data;
        saved[kFp8InputScale] = fp8_input.inverse_scale;
      }
    }
    // Also for its version: a gathered one has the shard's.
    if (dgrad && (!saved[kFp8Weight].defined() || layer->is_sharded)) saved[kWeight] = weight;
    if (wgrad && !saved[kFp8Input].defined())
      saved[kInput] = input.scalar_type() == type ? input : rows;
    context->save_for_backward(std::move(saved));

    context->saved_data["layer"] = c10::IValue::make_capsule(layer);
    context->saved_data["records"] = records;
    context->saved_data["type"] = static_cast<int64_t>(type);
    context->saved_data["input_type"] = static_cast<int64_t>(input.scalar_type());
    context->saved_data["weight_type"] = static_cast<int64_t>(weight.scalar_type());
    context->saved_data["bias_type"] =
        static_cast<int64_t>(bias ? bias->scalar_type() : at::ScalarType::Undefined);
    context->saved_data["input_sizes"] = input.sizes();
    std::vector<int64_t> sizes = input.sizes().vec();
    sizes.back() = weight.size(0);
    // A function's result that is a view cannot be changed in place.
    return at::_unsafe_view(output.contiguous(), sizes);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "a Linear layer in fp8 has no second derivative (backward with create_graph)");
    const PlainOperators plain;
    auto& data = context->saved_data;
    const auto type_of = [&](const char* key) {
      return static_cast<at::ScalarType>(data.at(key).toInt());
    };
    const auto layer = c10::static_intrusive_pointer_cast<Fp8Layer>(data.at("layer").toCapsule());
    const Product product(*layer, data.at("records").toBool());
    const Fp8Recipe& recipe = layer->recipe;
    const at::ScalarType type = type_of("type");
    variable_list saved = context->get_saved_variables();
    if (saved[kInput].defined())
      saved[kInput] = saved[kInput].reshape({-1, saved[kInput].size(-1)});
    const bool dgrad = context->needs_input_grad(0), wgrad = context->needs_input_grad(1);

    const Tensor& gradient = gradients[0];
    const Tensor rows = gradient.reshape({-1, gradient.size(-1)});
    std::optional<Fp8Tensor> fp8_gradient;
    if (!product.in_blocks() &&
        ((dgrad && !recipe.override_dgrad) || (wgrad && !recipe.override_wgrad))) {
      fp8_gradient = product.quantize(rows, Fp8Role::kGradient);
    }

    variable_list result(5);
    if (dgrad) {
      Tensor of_input;
      if (recipe.override_dgrad) {
        of_input = rows.mm(saved[kWeight].to(type));
      } else if (product.in_blocks()) {
        of_input = product.matmul_in_blocks(rows, Fp8Role::kGradient, saved[kWeight].t(), {}, type);
      } else {
        const Fp8Tensor weight = saved[kFp8Weight].defined()
                                     ? fp8_at(saved, kFp8Weight)
                                     : product.quantize_again(saved[kWeight], saved[kWeightScale]);
        of_input = product.matmul(*fp8_gradient, transposed(weight), {}, type);
      }
      result[0] = of_input.reshape(data.at("input_sizes").toIntVector()).to(type_of("input_type"));
    }
    if (wgrad) {
      const at::ScalarType weight_type = type_of("weight_type");
      if (recipe.override_wgrad) {
        result[1] = rows.t().mm(saved[kInput]).to(weight_type);
      } else if (product.in_blocks()) {
        result[1] = product.matmul_in_blocks(rows.t(), Fp8Role::kGradient, saved[kInput].t(), {},
                                             weight_type);
      } else {
        const Fp8Tensor input = saved[kFp8Input].defined()
                                    ? fp8_at(saved, kFp8Input)
                                    : product.quantize(saved[kInput], Fp8Role::kInput);
        result[1] = product.matmul(transposed(*fp8_gradient), transposed(input), {}, weight_type);
      }
    }
    if (type_of("bias_type") != at::ScalarType::Undefined && context->needs_input_grad(2)) {
      result[2] = rows.sum(0).to(type_of("bias_type"));
    }
    return result;
  }
};

// ---- The choice of layers.

Fp8Recipe recipe_of(const Fp8Plan& plan) {
  Fp8Recipe recipe;
  if (const auto* te = std::get_if<TERecipeKwargs>(&plan.recipe)) {
    recipe.scaling = *te->use_mxfp8_block_scaling ? Fp8Scaling::kBlocks : Fp8Scaling::kDelayed;
    recipe.gradient_format = *te->fp8_format == "E4M3" ? kE4M3 : kE5M2;
    recipe.override_fprop = (*te->override_linear_precision)[0];
    recipe.override_dgrad = (*te->override_linear_precision)[1];
    recipe.override_wgrad = (*te->override_linear_precision)[2];
  }
  return recipe;
}

std::shared_ptr<DelayedScales> scales_of(const Fp8Plan& plan, int64_t num_layers) {
  const auto* te = std::get_if<TERecipeKwargs>(&plan.recipe);
  if (te == nullptr || *te->use_mxfp8_block_scaling || num_layers == 0) return nullptr;
  return std::make_shared<DelayedScales>(
      num_layers,
      DelayedScalingOptions{.margin = *te->margin,
                            .interval = *te->interval,
                            .amax_history_len = *te->amax_history_len,
                            .use_max = *te->amax_compute_algo == "max",
                            .gradient_format = *te->fp8_format == "E4M3" ? kE4M3 : kE5M2});
}

// The names of a model's first and last layer.
using Ends = std::pair<std::optional<std::string>, std::optional<std::string>>;

// The reason why a layer stays in high precision; an empty text if it is converted.
std::string reason_against(const std::string& name, const torch::nn::LinearImpl& layer,
                           const Fp8Plan& plan, const Ends& ends) {
  bool keeps_ends = false, pads = false;
  if (const auto* te = std::get_if<TERecipeKwargs>(&plan.recipe)) {
    keeps_ends = te->keep_first_and_last;
  } else if (const auto* ao = std::get_if<AORecipeKwargs>(&plan.recipe)) {
    const Fp8Filter& filter = ao->module_filter_func;
    if (filter && !filter(layer, name)) return "module_filter_func rejects it";
    keeps_ends = !filter;
    pads = filter && *ao->pad_inner_dim;
  }
  if (keeps_ends && name == ends.first) return "the first Linear layer";
  if (keeps_ends && name == ends.second) return "the last Linear layer";
  const at::Tensor& weight = layer.weight;
  if (!weight.is_floating_point()) return "its weight is not a floating-point tensor";
  for (const int64_t size : weight.sizes()) {
    if (size == 0 || (size % kAlignment != 0 && !pads)) {
      return absl::StrCat("[", weight.size(0), ", ", weight.size(1),
                          "] has a dimension that is not a multiple of ", kAlignment);
    }
  }
  return "";
}

}  // namespace

bool has_native_fp8_matmul(c10::Device device) {
  if (!device.is_cuda()) return false;
  try {
    const at::Tensor zeros =
        at::zeros({kAlignment, kAlignment}, at::TensorOptions(device).dtype(at::kByte)).view(kE4M3);
    const at::Tensor one = at::ones({}, at::TensorOptions(device).dtype(at::kFloat));
    at::_scaled_mm(zeros, zeros.t(), one, one, /*bias=*/{}, /*scale_result=*/{}, at::kFloat);
    return true;
  } catch (const c10::Error&) {
    return false;  // an older device, or a build without it
  }
}

bool check_cuda_fp8_capability(const Runtime& runtime) {
  if (!is_cuda_available(/*check_device=*/false, runtime)) return false;
  if (const std::optional<bool> has = runtime.device_has(DeviceTrait::kFp8Products)) return *has;
  const c10::Device device = runtime.device();
  return has_native_fp8_matmul(device.is_cuda() ? device : c10::Device(c10::kCUDA, 0));
}

at::Tensor fp8_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                      const c10::intrusive_ptr<Fp8Layer>& layer, bool records) {
  const std::optional<at::Tensor> given = bias.defined() ? std::make_optional(bias) : std::nullopt;
  return Fp8LinearFunction::apply(input, weight, given, layer, records);
}

std::vector<NamedLinear> linear_layers(const torch::nn::Module& model) {
  std::vector<NamedLinear> found;
  std::unordered_set<const torch::nn::Module*> seen;
  model.apply([&](const std::string& name, const torch::nn::Module& module) {
    const auto* linear = dynamic_cast<const torch::nn::LinearImpl*>(&module);
    if (linear != nullptr && seen.insert(linear).second) found.emplace_back(name, linear);
  });
  return found;
}

std::pair<std::optional<std::string>, std::optional<std::string>> find_first_last_linear_layers(
    const torch::nn::Module& model) {
  const std::vector<NamedLinear> layers = linear_layers(model);
  if (layers.empty()) return {};
  return {layers.front().first, layers.back().first};
}

bool filter_linear_layers(const torch::nn::Module& module, const std::string& name,
                          const std::vector<std::string>& layers_to_filter) {
  if (const auto* linear = dynamic_cast<const torch::nn::LinearImpl*>(&module)) {
    for (const int64_t size : linear->weight.sizes()) {
      if (size % kAlignment != 0) return false;
    }
  }
  return std::find(layers_to_filter.begin(), layers_to_filter.end(), name) ==
         layers_to_filter.end();
}

Fp8Filter filter_first_and_last_linear_layers(const torch::nn::Module& model) {
  const auto [first, last] = find_first_last_linear_layers(model);
  std::vector<std::string> names;
  if (first) names = {*first, *last};
  return [names](const torch::nn::Module& module, const std::string& name) {
    return filter_linear_layers(module, name, names);
  };
}

std::string Fp8Report::to_string() const {
  std::string text = absl::StrCat(converted.size(), " of ", converted.size() + skipped.size(),
                                  " Linear layers in fp8 (", accelerate::to_string(backend), ")\n");
  for (const std::string& name : converted) absl::StrAppend(&text, "  ", name, "\n");
  for (const Skipped& layer : skipped) {
    absl::StrAppend(&text, "  ", layer.name, ": not converted: ", layer.reason, "\n");
  }
  return text;
}

std::shared_ptr<Fp8Model> Fp8Model::convert(torch::nn::Module& module, const Fp8Plan& plan,
                                            ProcessGroupPtr group) {
  return std::shared_ptr<Fp8Model>(new Fp8Model(module, plan, std::move(group)));
}

Fp8Model::Fp8Model(torch::nn::Module& module, const Fp8Plan& plan, ProcessGroupPtr group)
    : module_(module), plan_(plan), group_(std::move(group)) {
  report_.backend = plan.backend();
  const Ends ends = find_first_last_linear_layers(module);
  for (const auto& [name, linear] : linear_layers(module)) {
    std::string reason = reason_against(name, *linear, plan, ends);
    const at::Tensor& weight = linear->weight;
    if (!reason.empty()) {
      report_.skipped.push_back({name, std::move(reason)});
      continue;
    }
    report_.converted.push_back(name);
    auto [entry, is_new] = layers_.try_emplace(weight.unsafeGetTensorImpl());
    if (!is_new) continue;  // tied to a layer before
    entry->second = c10::make_intrusive<Fp8Layer>();
    entry->second->recipe = recipe_of(plan);
    entry->second->index = static_cast<int64_t>(weights_.size());
    weights_.push_back(weight);
  }
  scales_ = scales_of(plan, static_cast<int64_t>(weights_.size()));
  for (auto& [weight, layer] : layers_) layer->scales = scales_;
}

void Fp8Model::set_sharded() {
  for (auto& [weight, layer] : layers_) layer->is_sharded = true;
}

void Fp8Model::set_gathered_weight(const at::Tensor& weight, Fp8Tensor gathered) {
  layers_.at(weight.unsafeGetTensorImpl())->gathered = std::move(gathered);
}

void Fp8Model::use_device() {
  const c10::Device device = weights_.front().device();
  if (device_ == device) return;
  device_ = device;
  const bool native = has_native_fp8_matmul(device);
  for (auto& [weight, layer] : layers_) layer->native = native;
  if (scales_) scales_->to(device);
}

Fp8Model::Scope Fp8Model::forward_scope(bool agrees) {
  const auto* te = std::get_if<TERecipeKwargs>(&plan_.recipe);
  const bool evaluates = !module_.is_training();
  if (weights_.empty() || (te && evaluates && !*te->use_autocast_during_eval)) {
    return Scope(nullptr);
  }
  use_device();
  takes_step_ = !evaluates && at::GradMode::is_enabled();
  if (scales_ && takes_step_) scales_->begin_step(agrees ? group_.get() : nullptr);
  return Scope(shared_from_this());
}

std::optional<at::Tensor> Fp8Model::linear(const at::Tensor& input, const at::Tensor& weight,
                                           const at::Tensor& bias) {
  const auto found = layers_.find(weight.unsafeGetTensorImpl());
  // The operator itself reports arguments that do not fit.
  if (found == layers_.end() || input.dim() == 0 || !input.is_floating_point() ||
      input.size(-1) != weight.size(1) || input.device() != weight.device()) {
    return std::nullopt;
  }
  // A training pass may run parts without gradients: frozen ones, and ones recomputed later.
  const bool records = module_.is_training() && (takes_step_ || at::GradMode::is_enabled());
  return fp8_linear(input, weight, bias, found->second, records);
}

std::map<std::string, at::Tensor> Fp8Model::state_dict() const {
  if (!scales_) return {};
  return scales_->state_dict();
}

void Fp8Model::load_state_dict(const std::map<std::string, at::Tensor>& state) {
  if (scales_) scales_->load_state_dict(state);
}

}  // namespace accelerate
