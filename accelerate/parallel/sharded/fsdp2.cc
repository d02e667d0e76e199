#include "accelerate/parallel/sharded/fsdp2.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "accelerate/base/shard_rows.h"
#include "accelerate/comm/agree.h"
#include "accelerate/comm/operations.h"
#include "accelerate/files/box_view.h"
#include "accelerate/files/formats/boxes.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/parallel/residency/shards.h"
#include "accelerate/parallel/sharded/units.h"
#include "accelerate/values/module_class.h"

namespace accelerate {
namespace {

// What is on its way at a time.
constexpr int64_t kBucketBytes = int64_t{64} << 20;

using ByName = std::unordered_map<std::string, at::Tensor>;

// A tensor that gets values, and what it has of the whole one.
struct Target {
  std::string name;
  at::Tensor into;
  c10::Device device;               // where the whole one arrives
  std::vector<int64_t> shape = {};  // the whole one's
  std::vector<PlacedBox> boxes = {};
};

// `group`: the ranks that divide the parameter's rows; null for one.
Target target_of(const ModelPlacements& placements, const std::string& name,
                 const at::Tensor& parameter, const at::Tensor& into,
                 const ProcessGroupPtr& group) {
  Target target{.name = name, .into = into, .device = parameter.device()};
  const auto placed = placements.by_name.find(name);
  const TensorPlacement* const placement =
      placed != placements.by_name.end() ? placed->second.placement : nullptr;
  if (placements.is_cut && placement != nullptr &&
      !(placement->cut_axes() - placement->rows).empty()) {
    target.shape = placement->shape;
    target.boxes = boxes_of(*placement, placements.layout->mesh(), placements.rank);
    return target;
  }
  target.shape = parameter.sizes().vec();
  PlacedBox& rows = target.boxes.emplace_back();
  if (parameter.dim() == 0) return target;
  const ShardRows own = shard_rows(parameter.size(0), size_of(group), rank_of(group));
  rows.whole = row_box(target.shape, own.first, own.count);
  return target;
}

std::vector<Target> targets_of(const ModelState& model) {
  const torch::nn::Module& module = *model.module();
  std::vector<Target> targets;
  std::unordered_set<const c10::TensorImpl*> seen;  // a tied one has several names
  const auto add_whole = [&](const auto& named) {
    for (const auto& item : named) {
      if (!item.value().defined() || storage_owner(item.value()) != nullptr) continue;
      if (!seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
      targets.push_back(target_of(model.placements(), item.key(), item.value(), item.value(),
                                  /*group=*/nullptr));
    }
  };
  if (const auto* const sharded = model.find_technique<ShardedModel>()) {
    for (const TrainedParameter& each : sharded->trained()->tensors) {
      targets.push_back(target_of(model.placements(), each.name, each.parameter, each.trained,
                                  sharded->trained()->shards));
    }
  }
  add_whole(module.named_parameters());
  add_whole(module.named_buffers());
  return targets;
}

void check_has_all(const std::vector<Target>& targets, const ByName& full) {
  for (const Target& target : targets) {
    const auto values = full.find(target.name);
    TORCH_CHECK_VALUE(values != full.end(), "Parameter '", target.name,
                      "' found in sharded model state dict but missing from full state dict. Full "
                      "state dict has ",
                      full.size(), " keys, sharded has ", targets.size(), " keys.");
    TORCH_CHECK_VALUE(values->second.sizes().equals(target.shape), "'", target.name,
                      "' has the sizes ", values->second.sizes(), " in the full state dict, and ",
                      at::IntArrayRef(target.shape), " in the model");
  }
}

}  // namespace

bool model_has_dtensor(const torch::nn::Module& module) {
  return std::ranges::any_of(module.parameters(), [](const at::Tensor& parameter) {
    return parameter.defined() && storage_owner(parameter) != nullptr;
  });
}

ModulePolicy fsdp2_prepare_auto_wrap_policy(const FullyShardedDataParallelPlugin& plugin,
                                            const torch::nn::Module& model) {
  FullyShardedDataParallelPlugin own = plugin;
  own.set_auto_wrap_policy(model);
  if (!own.auto_wrap_policy) return nullptr;
  return [own](const torch::nn::Module& module) { return picks_unit(own, module); };
}

void fsdp2_switch_optimizer_parameters(torch::optim::Optimizer& optimizer,
                                       const ParameterMapping& mapping) {
  std::vector<std::vector<at::Tensor>> groups;
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    std::vector<at::Tensor>& parameters = groups.emplace_back();
    for (const at::Tensor& parameter : group.params()) {
      const auto found = mapping.find(parameter.unsafeGetTensorImpl());
      TORCH_CHECK_VALUE(found != mapping.end(),
                        "A parameter in the optimizer couldn't be switched to its sharded version: "
                        "number ",
                        parameters.size(), " of group ", groups.size() - 1,
                        " is not in the mapping. This breaks the training.");
      parameters.push_back(found->second);
    }
  }
  auto next = groups.begin();
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    group.params() = std::move(*next++);
  }
}

std::function<void(torch::nn::Module&)> ensure_weights_retied(
    std::function<void(torch::nn::Module&)> param_init_fn, const torch::nn::Module& model) {
  TORCH_CHECK_VALUE(param_init_fn, "ensure_weights_retied needs a param_init_fn");
  std::unordered_map<const c10::TensorImpl*, int> holders;
  const auto count = [&holders](const torch::nn::Module& module) {
    for (const at::Tensor& parameter : module.parameters(/*recurse=*/false)) {
      if (parameter.defined()) ++holders[parameter.unsafeGetTensorImpl()];
    }
  };
  count(model);
  for (const auto& module : model.modules(/*include_self=*/false)) count(*module);
  // The tensors themselves, so that no other one gets the address of a tied one.
  std::vector<at::Tensor> tied;
  for (const at::Tensor& parameter : model.parameters()) {
    if (parameter.defined() && holders[parameter.unsafeGetTensorImpl()] > 1)
      tied.push_back(parameter);
  }
  return [init = std::move(param_init_fn), tied = std::move(tied)](torch::nn::Module& module) {
    const auto before = module.named_parameters(/*recurse=*/false);
    init(module);
    const auto after = module.named_parameters(/*recurse=*/false);
    for (const auto& item : before) {
      const bool is_tied = std::ranges::any_of(
          tied, [&](const at::Tensor& each) { return each.is_same(item.value()); });
      if (!is_tied) continue;
      const at::Tensor* now = after.find(item.key());
      TORCH_CHECK_VALUE(now != nullptr && now->is_same(item.value()),
                        "param_init_fn replaced the parameter \"", item.key(), "\" of a ",
                        module_class_name(module),
                        ", which another module has as well; write into it instead");
    }
  };
}

void internal::load_full_state_dict(const ProcessGroupPtr& job, const ModelState& model,
                                    const NamedTensors& full) {
  const at::NoGradGuard no_grad;
  const std::vector<Target> targets = targets_of(model);
  const ByName values_of(full.begin(), full.end());
  const bool is_source = rank_of(job) == 0;
  agree(job, "fsdp2_load_full_state_dict", [&]() -> std::string {
    if (is_source) check_has_all(targets, values_of);
    return "";
  });
  std::vector<const Target*> members;
  std::vector<at::Tensor> bucket;
  int64_t bytes = 0;
  const auto send = [&] {
    if (!bucket.empty()) broadcast_tensors(job, bucket, 0);
    for (size_t i = 0; i < bucket.size(); ++i) {
      const Target& target = *members[i];
      if (target.into.numel() == 0) continue;
      for (const PlacedBox& box : target.boxes) {
        const at::Tensor values = box_view(bucket[i], box.whole);
        // One box is all of what the rank has, also where that has other dims.
        if (target.boxes.size() == 1) {
          target.into.copy_(values.reshape(target.into.sizes()));
        } else {
          box_view(target.into, box.part).copy_(values);
        }
      }
    }
    members.clear();
    bucket.clear();
    bytes = 0;
  };
  for (const Target& target : targets) {
    const at::TensorOptions place =
        at::TensorOptions(target.device).dtype(target.into.scalar_type());
    bucket.push_back(is_source ? values_of.at(target.name).detach().to(place).contiguous()
                               : at::empty(target.shape, place));
    members.push_back(&target);
    bytes += static_cast<int64_t>(bucket.back().nbytes());
    if (bytes >= kBucketBytes) send();
  }
  send();
}

}  // namespace accelerate
