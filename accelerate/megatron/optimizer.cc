#include "accelerate/megatron/optimizer.h"

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <typeinfo>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/nn/module.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>
#include <nlohmann/json.hpp>

#include "accelerate/base/json_text.h"

namespace accelerate {
namespace {

using Json = nlohmann::ordered_json;
using ParamGroups = std::vector<torch::optim::OptimizerParamGroup>;

double number(const Json& args, const char* name) {
  const auto found = args.find(name);
  TORCH_CHECK_VALUE(found != args.end() && found->is_number(), name,
                    ": expected the number that set_optimizer_type sets, got ",
                    found == args.end() ? "nothing" : json_text(*found));
  return found->get<double>();
}

// Without decay first, as false comes before true; then by whether the rate is multiplied.
using Kind = std::pair<bool, bool>;
using Kinds = std::map<Kind, std::vector<at::Tensor>>;

template <typename Optimizer, typename Options>
std::shared_ptr<torch::optim::Optimizer> make(const Kinds& kinds, const Options& options) {
  ParamGroups groups;
  for (const auto& [kind, parameters] : kinds) {
    groups.emplace_back(parameters, std::make_unique<Options>(options));
  }
  return std::make_shared<Optimizer>(std::move(groups), options);
}

template <typename Options>
bool set_decay(torch::optim::OptimizerOptions& options, double weight_decay) {
  auto* const known = dynamic_cast<Options*>(&options);
  if (known != nullptr) known->weight_decay(weight_decay);
  return known != nullptr;
}

template <typename Options>
nlohmann::json adam_defaults(const Options& options) {
  const auto& [beta1, beta2] = options.betas();
  return {{"lr", options.lr()},
          {"betas", nlohmann::json::array({beta1, beta2})},
          {"eps", options.eps()},
          {"weight_decay", options.weight_decay()}};
}

}  // namespace

MegatronOptimizer make_megatron_optimizer(const torch::nn::Module& model,
                                          const MegatronLMPlugin& plugin) {
  const Json& args = plugin.megatron_lm_default_args;
  const auto kind = args.find("optimizer");
  TORCH_CHECK_VALUE(kind != args.end() && (*kind == "adam" || *kind == "sgd"),
                    "optimizer: expected \"adam\" or \"sgd\", which set_optimizer_type sets, got ",
                    kind == args.end() ? "nothing" : json_text(*kind));
  const double lr = number(args, "lr"), weight_decay = number(args, "weight_decay");
  Kinds kinds;
  std::set<const c10::TensorImpl*> known;
  for (const auto& item : model.named_parameters()) {
    const std::string& name = item.key();
    const at::Tensor& parameter = item.value();
    if (!parameter.requires_grad() || !known.insert(parameter.unsafeGetTensorImpl()).second) {
      continue;
    }
    const bool is_free = plugin.no_wd_decay_cond ? plugin.no_wd_decay_cond(name, parameter)
                                                 : name.ends_with(".bias") || parameter.dim() == 1;
    const bool is_scaled = plugin.scale_lr_cond && plugin.scale_lr_cond(name, parameter);
    kinds[{!is_free, is_scaled}].push_back(parameter);
  }
  TORCH_CHECK_VALUE(!kinds.empty(), "Megatron-LM: the model has no parameters to train");
  MegatronOptimizer made;
  if (*kind == "adam") {
    const std::tuple<double, double> betas(number(args, "adam_beta1"), number(args, "adam_beta2"));
    made.optimizer = make<torch::optim::AdamW>(kinds, torch::optim::AdamWOptions(lr)
                                                          .betas(betas)
                                                          .eps(number(args, "adam_eps"))
                                                          .weight_decay(weight_decay));
  } else {
    made.optimizer = make<torch::optim::SGD>(kinds, torch::optim::SGDOptions(lr)
                                                        .momentum(number(args, "sgd_momentum"))
                                                        .weight_decay(weight_decay));
  }
  for (const auto& [each, parameters] : kinds) {
    made.factors.push_back(
        {.lr = each.second ? plugin.lr_mult : 1, .weight_decay = each.first ? 1.0 : 0.0});
  }
  return made;
}

void set_megatron_rates(torch::optim::Optimizer& optimizer,
                        const std::vector<MegatronFactors>& factors,
                        const MegatronSchedule& schedule, int64_t samples) {
  const double lr = megatron_lr(schedule, samples);
  const double weight_decay = megatron_weight_decay(schedule, samples);
  ParamGroups& groups = optimizer.param_groups();
  TORCH_CHECK_VALUE(groups.size() == factors.size(), "the optimizer has ", groups.size(),
                    " groups of parameters, but there are factors for ", factors.size());
  for (size_t i = 0; i < groups.size(); ++i) {
    torch::optim::OptimizerOptions& options = groups[i].options();
    options.set_lr(lr * factors[i].lr);
    const double own = weight_decay * factors[i].weight_decay;
    TORCH_CHECK_VALUE(set_decay<torch::optim::AdamWOptions>(options, own) ||
                          set_decay<torch::optim::SGDOptions>(options, own),
                      "Megatron-LM has AdamW and SGD, but a group of parameters is of another "
                      "optimizer");
  }
}

MegatronOptimizerFacts megatron_optimizer_facts(const torch::optim::Optimizer& optimizer) {
  const torch::optim::OptimizerOptions& options = optimizer.defaults();
  if (const auto* adamw = dynamic_cast<const torch::optim::AdamWOptions*>(&options)) {
    return {.class_name = "AdamW", .defaults = adam_defaults(*adamw)};
  }
  if (const auto* adam = dynamic_cast<const torch::optim::AdamOptions*>(&options)) {
    return {.class_name = "Adam", .defaults = adam_defaults(*adam)};
  }
  const auto* sgd = dynamic_cast<const torch::optim::SGDOptions*>(&options);
  TORCH_CHECK_VALUE(sgd != nullptr, "Optimizer ", c10::demangle(typeid(optimizer).name()),
                    " is not supported by Megatron-LM, which has Adam and SGD");
  return {
      .class_name = "SGD",
      .defaults = {
          {"lr", sgd->lr()}, {"momentum", sgd->momentum()}, {"weight_decay", sgd->weight_decay()}}};
}

}  // namespace accelerate
