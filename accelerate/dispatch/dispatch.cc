#include "accelerate/dispatch/dispatch.h"

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "accelerate/big_model/infer_device_map.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/values/dtypes.h"

namespace accelerate::internal {
namespace {

// The map, inferred if it is a text; absent: none is asked for.
std::optional<DeviceMap> device_map_for(const torch::nn::Module& model,
                                        const LoadCheckpointAndDispatchOptions& options) {
  if (!options.device_map) return std::nullopt;
  if (const auto* map = std::get_if<DeviceMap>(&*options.device_map)) return *map;
  const std::string& kind = std::get<std::string>(*options.device_map);
  const std::string dtype = options.dtype ? dtype_name(*options.dtype) : "";
  std::optional<DeviceMap> map =
      infer_by_strategy(model, kind, options.max_memory,
                        {.sizes = {.dtype = dtype},
                         .no_split_module_classes = options.no_split_module_classes,
                         .offload_buffers = options.offload_buffers});
  TORCH_CHECK_VALUE(map, "load_checkpoint_and_dispatch: device_map is \"", kind,
                    "\"; it is a map, or \"auto\", \"balanced\", \"balanced_low_0\" or "
                    "\"sequential\"");
  return map;
}

}  // namespace

c10::Device execution_device_of(const torch::nn::Module& model,
                                const std::optional<c10::Device>& given) {
  if (given) return *given;
  const std::vector<at::Tensor> parameters = model.parameters();
  if (parameters.empty() || parameters[0].is_meta()) return Runtime::current().device();
  return parameters[0].device();
}

std::shared_ptr<DispatchedModel> load_and_dispatch(
    FileSystem& files, std::shared_ptr<torch::nn::Module> model, const std::string& checkpoint,
    const LoadCheckpointAndDispatchOptions& options) {
  TORCH_CHECK_VALUE(model != nullptr, "load_checkpoint_and_dispatch: the model is null");
  TORCH_CHECK_VALUE(
      find_dispatched(*model) == nullptr,
      "load_checkpoint_and_dispatch: the model is dispatched already; free the result "
      "of that call first");
  const std::optional<DeviceMap> map = device_map_for(*model, options);
  LoadedCheckpoint loaded =
      load_checkpoint(files, *model, checkpoint,
                      {.device_map = map,
                       .offload_folder = options.offload_folder,
                       .dtype = options.dtype,
                       .offload_state_dict = options.offload_state_dict.value_or(false),
                       .offload_buffers = options.offload_buffers,
                       .keep_in_fp32_modules = options.keep_in_fp32_modules,
                       .strict = options.strict,
                       .full_state_dict = options.full_state_dict,
                       .broadcast_from_rank0 = options.broadcast_from_rank0,
                       .process_group = options.process_group});
  if (!map) return DispatchedModel::make_undispatched(std::move(model));
  return DispatchedModel::make(std::move(model), *map,
                               {.main_device = options.main_device,
                                .offload_dir = options.offload_folder,
                                // And nothing else that the folder has.
                                .offload_index = std::move(loaded.offloaded),
                                .offload_buffers = options.offload_buffers,
                                .skip_keys = options.skip_keys,
                                .preload_module_classes = options.preload_module_classes,
                                .force_hooks = options.force_hooks});
}

}  // namespace accelerate::internal
