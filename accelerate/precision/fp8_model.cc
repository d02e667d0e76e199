#include "accelerate/precision/fp8_model.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/nn/modules/linear.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "absl/functional/overload.h"
#include "absl/strings/str_cat.h"

namespace accelerate {
namespace {

constexpr int64_t kAlignment = 16;

void visit(const torch::nn::Module& module, const std::string& name,
           std::unordered_set<const torch::nn::Module*>& seen, std::vector<NamedLinear>& found) {
  if (!seen.insert(&module).second) return;
  if (const auto* linear = dynamic_cast<const torch::nn::LinearImpl*>(&module)) {
    found.emplace_back(name, linear);
  }
  for (const auto& child : module.named_children()) {
    visit(*child.value(), name.empty() ? child.key() : name + "." + child.key(), seen, found);
  }
}

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

// Gives the reason why a layer stays in high precision; an empty text if it is converted.
class Choice {
 public:
  Choice(const torch::nn::Module& model, const Fp8Plan& plan)
      : ends_(find_first_last_linear_layers(model)) {
    std::visit(
        absl::Overload{[&](const TERecipeKwargs& te) { keeps_ends_ = te.keep_first_and_last; },
                       [&](const MSAMPRecipeKwargs&) {},
                       [&](const AORecipeKwargs& ao) {
                         filter_ = ao.module_filter_func;
                         keeps_ends_ = !filter_;
                         pads_ = filter_ && *ao.pad_inner_dim;
                       }},
        plan.recipe);
  }

  std::string reason_against(const std::string& name, const torch::nn::LinearImpl& layer) const {
    if (filter_ && !filter_(layer, name)) return "module_filter_func rejects it";
    if (keeps_ends_ && name == ends_.first) return "the first Linear layer";
    if (keeps_ends_ && name == ends_.second) return "the last Linear layer";
    const at::Tensor& weight = layer.weight;
    if (!weight.is_floating_point()) return "its weight is not a floating-point tensor";
    for (const int64_t size : weight.sizes()) {
      if (size == 0 || (size % kAlignment != 0 && !pads_)) {
        return absl::StrCat("[", weight.size(0), ", ", weight.size(1),
                            "] has a dimension that is not a multiple of ", kAlignment);
      }
    }
    return "";
  }

 private:
  const std::pair<std::optional<std::string>, std::optional<std::string>> ends_;
  Fp8Filter filter_;
  bool keeps_ends_ = false;
  bool pads_ = false;
};

}  // namespace

std::vector<NamedLinear> linear_layers(const torch::nn::Module& model) {
  std::vector<NamedLinear> found;
  std::unordered_set<const torch::nn::Module*> seen;
  visit(model, "", seen, found);
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
                                            c10::intrusive_ptr<c10d::ProcessGroup> group) {
  return std::shared_ptr<Fp8Model>(new Fp8Model(module, plan, std::move(group)));
}

std::shared_ptr<Fp8Model> Fp8Model::convert(torch::nn::Module& module, const Fp8Plan& plan) {
  return convert(module, plan, {});
}

Fp8Model::Fp8Model(torch::nn::Module& module, const Fp8Plan& plan,
                   c10::intrusive_ptr<c10d::ProcessGroup> group)
    : module_(module), plan_(plan), group_(std::move(group)) {
  report_.backend = plan.backend();
  const Choice choice(module, plan);
  for (const auto& [name, linear] : linear_layers(module)) {
    std::string reason = choice.reason_against(name, *linear);
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

Fp8Model::~Fp8Model() = default;

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
