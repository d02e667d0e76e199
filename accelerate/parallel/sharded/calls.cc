#include "accelerate/parallel/sharded/calls.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <unordered_set>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "accelerate/operators/managed_storage.h"
#include "accelerate/parallel/residency/shards.h"
#include "accelerate/parallel/sharded/units.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/values/module_class.h"

namespace accelerate {

struct internal::MarkedUnit {
  std::weak_ptr<torch::nn::Module> module;
  FullyShardOptions options;
  // Those of the model that was divided, and the module's path in it.
  std::weak_ptr<ShardedParameters> parameters;
  std::string path;
  // What was set before.
  std::vector<std::function<void(MarkedUnit& unit)>> waiting;
};

namespace {

using internal::MarkedUnit;

// Those of a Runtime.
struct MarkedUnits {
  std::vector<std::shared_ptr<MarkedUnit>> units;

  static MarkedUnits& current() {
    return Runtime::current().shared<MarkedUnits>([] { return std::make_unique<MarkedUnits>(); });
  }
};

// By module; those of other models are among them.
std::unordered_map<const torch::nn::Module*, std::shared_ptr<MarkedUnit>> units_by_module() {
  std::unordered_map<const torch::nn::Module*, std::shared_ptr<MarkedUnit>> units;
  for (const std::shared_ptr<MarkedUnit>& unit : MarkedUnits::current().units) {
    if (const auto module = unit->module.lock()) units.emplace(module.get(), unit);
  }
  return units;
}

void apply(const MarkedUnit& unit, const std::function<void(ShardedParameters&, int)>& setting,
           bool recurse) {
  const std::shared_ptr<ShardedParameters> parameters = unit.parameters.lock();
  if (parameters == nullptr) return;
  for (const int group : parameters->groups_of(unit.path, recurse)) setting(*parameters, group);
}

}  // namespace

FSDPModule fully_shard(const std::shared_ptr<torch::nn::Module>& module,
                       FullyShardOptions options) {
  TORCH_CHECK_VALUE(module != nullptr, "fully_shard: the module is null");
  const auto parameters = module->named_parameters();
  for (const auto& item : parameters) {
    TORCH_CHECK_VALUE(storage_owner(item.value()) == nullptr, "fully_shard: the parameter \"",
                      item.key(), "\" of a ", module_class_name(*module),
                      " is divided among ranks already; call fully_shard before prepare");
  }
  for (const at::Tensor& ignored : options.ignored_params) {
    TORCH_CHECK_VALUE(
        std::ranges::any_of(parameters,
                            [&](const auto& item) { return item.value().is_same(ignored); }),
        "fully_shard: ignored_params has a tensor that is not a parameter of the ",
        module_class_name(*module));
  }
  auto& units = MarkedUnits::current().units;
  std::erase_if(units, [](const auto& unit) { return unit->module.expired(); });
  std::shared_ptr<MarkedUnit> unit = units_by_module()[module.get()];
  if (unit == nullptr) units.push_back(unit = std::make_shared<MarkedUnit>());
  unit->module = module;
  unit->options = std::move(options);
  return FSDPModule(std::move(unit));
}

void FSDPModule::set(std::function<void(ShardedParameters& parameters, int group)> setting,
                     bool recurse) const {
  if (!unit_->parameters.expired()) return apply(*unit_, setting, recurse);
  unit_->waiting.push_back(
      [setting = std::move(setting), recurse](MarkedUnit& unit) { apply(unit, setting, recurse); });
}

void FSDPModule::set_requires_gradient_sync(bool requires_gradient_sync, bool recurse) const {
  set([=](ShardedParameters& all,
          int group) { all.gradients().set_reduces(group, requires_gradient_sync); },
      recurse);
}

void FSDPModule::set_requires_all_reduce(bool requires_all_reduce, bool recurse) const {
  set([=](ShardedParameters& all,
          int group) { all.gradients().set_all_reduces(group, requires_all_reduce); },
      recurse);
}

void FSDPModule::set_reshard_after_forward(bool reshard_after_forward, bool recurse) const {
  set([=](ShardedParameters& all,
          int group) { all.set_reshard_after_forward(group, reshard_after_forward); },
      recurse);
}

void FSDPModule::set_reshard_after_backward(bool reshard_after_backward, bool recurse) const {
  set([=](ShardedParameters& all,
          int group) { all.set_reshard_after_backward(group, reshard_after_backward); },
      recurse);
}

void FSDPModule::set_modules_to_forward_prefetch(const std::vector<FSDPModule>& modules) const {
  set_ahead(modules, /*in_backward=*/false);
}

void FSDPModule::set_modules_to_backward_prefetch(const std::vector<FSDPModule>& modules) const {
  set_ahead(modules, /*in_backward=*/true);
}

void FSDPModule::set_ahead(const std::vector<FSDPModule>& modules, bool in_backward) const {
  set(
      [modules, in_backward](ShardedParameters& all, int group) {
        std::vector<int> ahead;
        for (const FSDPModule& each : modules) {
          TORCH_CHECK_VALUE(each.unit_->parameters.lock().get() == &all,
                            "modules to prefetch must be units of the same model");
          std::ranges::copy(all.groups_of(each.unit_->path, /*inner=*/false),
                            std::back_inserter(ahead));
        }
        all.residency()->set_ahead(group, in_backward, std::move(ahead));
      },
      /*recurse=*/false);
}

void FSDPModule::set_gradient_divide_factor(double factor) const {
  TORCH_CHECK_VALUE(factor > 0, "set_gradient_divide_factor: ", factor, " is not above 0");
  set([=](ShardedParameters& all, int group) { all.gradients().set_divide_factor(group, factor); },
      /*recurse=*/false);
}

void FSDPModule::unshard() const {
  apply(
      *unit_, [](ShardedParameters& all, int group) { all.unshard(group); },
      /*recurse=*/false);
}

void FSDPModule::reshard() const {
  apply(
      *unit_, [](ShardedParameters& all, int group) { all.residency()->reshard(group); },
      /*recurse=*/false);
}

namespace internal {

std::optional<std::vector<ShardUnit>> marked_units(const torch::nn::Module& model,
                                                   std::vector<std::string>& ignored) {
  const auto units = units_by_module();
  std::vector<ChosenUnit> chosen;
  bool any = false, root_reshards = false;
  const auto named = model.named_parameters();
  std::unordered_set<const c10::TensorImpl*> left_out;
  for (const std::string& name : ignored) left_out.insert(named[name].unsafeGetTensorImpl());
  for (const NamedModule& each : modules_bottom_up(model)) {
    const auto found = units.find(each.module);
    if (found == units.end()) continue;
    any = true;
    const FullyShardOptions& options = found->second->options;
    for (const at::Tensor& parameter : options.ignored_params) {
      if (!left_out.insert(parameter.unsafeGetTensorImpl()).second) continue;
      for (const auto& item : named) {
        if (!item.value().is_same(parameter)) continue;
        ignored.push_back(item.key());
        break;
      }
    }
    if (each.module == &model) {
      root_reshards = options.reshard_after_forward.value_or(false);
    } else {
      chosen.push_back({{each}, options.reshard_after_forward.value_or(true)});
    }
  }
  if (!any) return std::nullopt;
  chosen.push_back({{{"", &model}}, root_reshards});
  return units_of(model, chosen, left_out);
}

void bind_marked_units(const torch::nn::Module& model,
                       const std::shared_ptr<ShardedParameters>& parameters) {
  const auto units = units_by_module();
  std::vector<MarkedUnit*> bound;
  for (const NamedModule& each : modules_bottom_up(model)) {
    const auto found = units.find(each.module);
    if (found == units.end()) continue;
    MarkedUnit& unit = *bound.emplace_back(found->second.get());
    unit.parameters = parameters;
    unit.path = each.name;
  }
  // Settings of one unit may name others.
  for (MarkedUnit* const unit : bound) {
    for (const auto& setting : std::exchange(unit->waiting, {})) setting(*unit);
  }
}

}  // namespace internal
}  // namespace accelerate
