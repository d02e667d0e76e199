#include "accelerate/dispatch/dispatch_technique.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "accelerate/dispatch/dispatched_model.h"
#include "accelerate/modules/value_at_use.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/plan/plan.h"
#include "accelerate/runtime/env_parsing.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate {
namespace {

using DispatchedModels = std::vector<std::shared_ptr<DispatchedModel>>;

class DispatchTechnique final : public Technique {
 public:
  // `models`: those of the module and inside of it, at least one. Local.
  DispatchTechnique(const torch::nn::Module& module, DispatchedModels models)
      : models_(std::move(models)) {
    if (models_.front()->module().get() == &module) outputs_ = models_.front()->main_device();
    TrainedInPlace in_place;
    const auto home_of = [&](const at::Tensor& parameter) {
      for (const auto& model : models_) {
        const auto* const offloaded = model->find_offloaded(parameter);
        if (offloaded == nullptr || !offloaded->home.defined()) continue;
        // Scopes that write back are the same for all parameters that have a home: there are none.
        if (in_place.overwriting_scopes == nullptr) {
          in_place.overwriting_scopes = model->residency()->writers();
        }
        return offloaded->home;
      }
      return at::Tensor();
    };
    for (const auto& item : module.named_parameters()) {
      const at::Tensor home = home_of(item.value());
      in_place.tensors.push_back({item.key(), item.value(), home.defined() ? home : item.value()});
    }
    if (in_place.overwriting_scopes != nullptr) trained_ = std::move(in_place);
  }

  std::string_view name() const override { return kDispatchTechnique; }
  void forward(ForwardPass& pass) override { proceed_within(pass, 0); }
  const TrainedInPlace* trained() const override { return trained_ ? &*trained_ : nullptr; }

 private:
  // In the passes of the models from that one on.
  void proceed_within(ForwardPass& pass, size_t next) {
    if (next < models_.size()) {
      DispatchedModel::Pass scope(*models_[next]);
      proceed_within(pass, next + 1);
      if (std::ranges::none_of(pass.outputs(), [](const at::Tensor& output) {
            return output.defined() && output.requires_grad();
          })) {
        scope.expect_no_backward();
      }
      return;
    }
    pass.proceed();
    if (!outputs_) return;
    std::vector<at::Tensor> outputs = pass.outputs();
    for (at::Tensor& output : outputs) {
      if (output.defined()) output = output.to(*outputs_);
    }
    pass.set_outputs(std::move(outputs));
  }

  const DispatchedModels models_;
  std::optional<c10::Device> outputs_;     // where outputs go
  std::optional<TrainedInPlace> trained_;  // absent: optimizers train the parameters themselves
};

}  // namespace

void check_dispatched_model(const TechniqueContext& context) {
  const ModelPlan& plan = context.plan;
  const DispatchedModels dispatched = internal::dispatched_within(*context.model.module());
  TORCH_CHECK_VALUE(dispatched.empty() || plan.layout == nullptr || plan.layout->cuts().empty(),
                    "prepare: the model is placed by a device map, and rank ", plan.rank,
                    " is to have parts of its layers; leave the device map out");
  const bool has_several_ranks = plan.num_ranks > 1;
  const bool is_spread = std::ranges::any_of(
      dispatched, [](const auto& each) { return each->device_map().size() > 1; });
  if (has_several_ranks && is_spread) {
    TORCH_CHECK_VALUE(parse_flag_from_env("ACCELERATE_BYPASS_DEVICE_MAP"),
                      "prepare: the model is placed on several devices by a device map, and rank ",
                      plan.rank, " is one of ", plan.num_ranks,
                      " ranks, each of which would train such a model: run one process, or set "
                      "ACCELERATE_BYPASS_DEVICE_MAP=true if that is what you want");
  }
  if (!context.trains || (!has_several_ranks && !plan.has_sharding_plugin)) return;
  for (const auto& each : dispatched) {
    TORCH_CHECK_VALUE(
        each->offloaded().empty(), "prepare: a device map has offloaded parameter \"",
        each->offloaded()[0].name,
        "\" of the model, which one process can train, without FSDP or DeepSpeed: let those "
        "offload the model, or prepare it with evaluation_mode");
  }
}

bool move_around_dispatched(const TechniqueContext& context) {
  const torch::nn::Module& module = *context.model.module();
  const DispatchedModels dispatched = internal::dispatched_within(module);
  if (dispatched.empty()) return false;
  std::unordered_set<const torch::nn::Module*> stay;
  // What a dispatched model shares with what is around it stays.
  std::unordered_set<const c10::TensorImpl*> parameters;
  for (const auto& each : dispatched) {
    stay.insert(each->module().get());
    for (const at::Tensor& tensor : each->module()->parameters()) {
      parameters.insert(tensor.unsafeGetTensorImpl());
    }
  }
  const c10::Device device = context.plan.device;
  const auto move = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.device() == device) return;
    if (parameters.contains(tensor.unsafeGetTensorImpl())) return;
    internal::rebind(tensor, internal::moved_to(tensor, device));
  };
  const auto visit = [&](const auto& self, const torch::nn::Module& each) -> void {
    if (stay.contains(&each)) return;
    for (const at::Tensor& tensor : each.parameters(/*recurse=*/false)) move(tensor);
    for (const at::Tensor& tensor : each.buffers(/*recurse=*/false)) move(tensor);
    for (const auto& child : each.children()) self(self, *child);
  };
  visit(visit, module);
  return true;
}

std::unique_ptr<Technique> make_dispatch_technique(const TechniqueContext& context) {
  const torch::nn::Module& module = *context.model.module();
  DispatchedModels dispatched = internal::dispatched_within(module);
  if (dispatched.empty()) return nullptr;
  return std::make_unique<DispatchTechnique>(module, std::move(dispatched));
}

}  // namespace accelerate
