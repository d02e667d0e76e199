#include "accelerate/quantization/models/quantized_checks.h"

#include <optional>
#include <vector>

#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "accelerate/big_model/load_plan.h"
#include "accelerate/device_map/device_map.h"
#include "accelerate/dispatch/dispatched_model.h"
#include "accelerate/modules/module_tensors.h"
#include "accelerate/plan/plan.h"
#include "accelerate/quantization/models/load_and_quantize.h"
#include "accelerate/quantization/models/quantized_weight.h"

namespace accelerate {
namespace {

void check_codes_are_frozen(const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) {
    TORCH_CHECK_VALUE(!item.value().requires_grad() || !quantized_bits(item.value()),
                      "prepare: parameter \"", item.key(),
                      "\" is quantised and requires gradients; quantised weights cannot be "
                      "trained: train adapters beside them");
  }
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

void check_quantized_model(const TechniqueContext& context) {
  if (!context.trains) return;
  const torch::nn::Module& module = *context.model.module();
  check_codes_are_frozen(module);
  for (const auto& each : internal::dispatched_within(module)) check_placement(*each, context.plan);
}

}  // namespace accelerate
