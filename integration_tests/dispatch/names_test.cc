// The names, arguments and defaults of HF Accelerate's big_modeling and hooks: that they compile is
// the test of them.
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/big_model/empty_model.h"
#include "accelerate/dispatch/dispatch.h"
#include "accelerate/dispatch/offloaded_state.h"
#include "accelerate/hooks/align_devices.h"
#include "accelerate/hooks/cpu_offload.h"
#include "accelerate/hooks/layerwise_casting.h"
#include "accelerate/hooks/model_hook.h"
#include "accelerate/platform/file_system.h"

namespace accelerate {
namespace {

namespace nn = torch::nn;

using ::testing::IsEmpty;

TEST(Names, OfBigModelingAndTheirDefaultsAreThoseOfHfAccelerate) {
  const DispatchOptions dispatch;
  EXPECT_FALSE(dispatch.main_device || dispatch.offload_index || dispatch.offload_buffers ||
               dispatch.force_hooks);
  EXPECT_TRUE(dispatch.state_dict.empty() && dispatch.offload_dir.empty() &&
              dispatch.skip_keys.empty() && dispatch.preload_module_classes.empty());
  const CpuOffloadOptions host;
  EXPECT_FALSE(host.execution_device || host.offload_buffers);
  EXPECT_TRUE(host.state_dict.empty() && host.preload_module_classes.empty());
  const DiskOffloadOptions disk;
  EXPECT_FALSE(disk.execution_device || disk.offload_buffers);
  const LoadCheckpointAndDispatchOptions load;
  EXPECT_FALSE(load.device_map || load.max_memory || load.offload_buffers || load.dtype ||
               load.offload_state_dict || load.force_hooks || load.strict ||
               load.broadcast_from_rank0);
  EXPECT_TRUE(load.full_state_dict);
  // The functions with all arguments, and with those that have no default.
  const auto all = [](nn::Linear model, const DeviceMap& map, FileSystem& files,
                      const nn::Module& module) {
    (void)init_empty_weights();
    (void)init_empty_weights(/*include_buffers=*/true);
    (void)init_on_device(c10::kCPU);
    (void)init_on_device(c10::kCPU, /*include_buffers=*/true);
    (void)cpu_offload(model);
    (void)cpu_offload(model, {.execution_device = c10::Device(c10::kCPU),
                              .offload_buffers = false,
                              .state_dict = {},
                              .preload_module_classes = {}});
    (void)disk_offload(model, "folder");
    (void)disk_offload(model, "folder",
                       {.execution_device = c10::Device(c10::kCPU),
                        .offload_buffers = false,
                        .preload_module_classes = {}});
    (void)dispatch_model(model, map);
    (void)dispatch_model(model, map,
                         {.main_device = c10::Device(c10::kCPU),
                          .state_dict = {},
                          .offload_dir = "",
                          .offload_index = std::nullopt,
                          .offload_buffers = false,
                          .skip_keys = {},
                          .preload_module_classes = {},
                          .force_hooks = false});
    (void)load_checkpoint_and_dispatch(files, model, "checkpoint");
    (void)load_checkpoint_and_dispatch(files, model, "checkpoint",
                                       {.device_map = std::string("auto"),
                                        .max_memory = std::nullopt,
                                        .no_split_module_classes = {},
                                        .offload_folder = "",
                                        .offload_buffers = false,
                                        .dtype = std::nullopt,
                                        .offload_state_dict = std::nullopt,
                                        .skip_keys = {},
                                        .preload_module_classes = {},
                                        .force_hooks = false,
                                        .strict = false,
                                        .full_state_dict = true,
                                        .broadcast_from_rank0 = false});
    (void)align_module_device(module);
    (void)align_module_device(module, c10::Device(c10::kCPU));
    (void)has_offloaded_params(module);
    (void)verify_device_map(module);
  };
  static_cast<void>(all);
}

TEST(Names, OfHooksAndTheirDefaultsAreThoseOfHfAccelerate) {
  const AlignDevicesHookOptions align;
  EXPECT_EQ(align.execution_device, std::nullopt);
  EXPECT_FALSE(align.offload || align.io_same_device || align.offload_buffers ||
               align.place_submodules);
  EXPECT_EQ(align.weights_map, nullptr);
  EXPECT_THAT(align.skip_keys, IsEmpty());
  EXPECT_EQ(align.tied_params_map, nullptr);

  const AttachExecutionDeviceOptions execution;
  EXPECT_THAT(std::tie(execution.skip_keys, execution.preload_module_classes),
              testing::FieldsAre(IsEmpty(), IsEmpty()));
  EXPECT_EQ(execution.tied_params_map, nullptr);

  const AttachAlignDeviceOptions attach;
  EXPECT_FALSE(attach.execution_device || attach.offload || attach.offload_buffers ||
               attach.weights_map || attach.tied_params_map);
  EXPECT_THAT(std::tie(attach.module_name, attach.skip_keys, attach.preload_module_classes),
              testing::FieldsAre("", IsEmpty(), IsEmpty()));

  const AttachAlignDeviceOnBlocksOptions blocks;
  EXPECT_EQ(std::get<0>(blocks.execution_device), std::nullopt);
  EXPECT_FALSE(std::get<0>(blocks.offload) || blocks.offload_buffers || blocks.weights_map ||
               blocks.tied_params_map);
  EXPECT_THAT(std::tie(blocks.module_name, blocks.skip_keys, blocks.preload_module_classes),
              testing::FieldsAre("", IsEmpty(), IsEmpty()));

  const LayerwiseCastingOptions casting;
  EXPECT_THAT(std::tie(casting.skip_modules_pattern, casting.skip_modules_classes),
              testing::FieldsAre(IsEmpty(), IsEmpty()));
  EXPECT_FALSE(casting.non_blocking);

  static_assert(std::is_base_of_v<ModelHook, AlignDevicesHook> &&
                std::is_base_of_v<ModelHook, CpuOffload> &&
                std::is_base_of_v<ModelHook, LayerwiseCastingHook> &&
                std::is_base_of_v<ModelHook, SequentialHook>);
  // The functions with all arguments, and with those that have no default.
  const auto all = [](HookTarget module, nn::Module& any, std::shared_ptr<ModelHook> hook,
                      nn::Linear model, UserCpuOffloadHook user) {
    add_hook_to_module(module, hook);
    add_hook_to_module(module, hook, /*append=*/false);
    remove_hook_from_module(module);
    remove_hook_from_module(module, /*recurse=*/false);
    remove_hook_from_submodules(module);
    attach_execution_device_hook(module, c10::kCPU);
    attach_execution_device_hook(module, c10::kCPU, AttachExecutionDeviceOptions());
    attach_align_device_hook(module);
    attach_align_device_hook(module, AttachAlignDeviceOptions());
    attach_align_device_hook_on_blocks(module);
    attach_align_device_hook_on_blocks(module, AttachAlignDeviceOnBlocksOptions());
    attach_layerwise_casting_hooks(any, at::kHalf, at::kFloat);
    attach_layerwise_casting_hooks(any, at::kHalf, at::kFloat, LayerwiseCastingOptions());
    cpu_offload_with_hook(model);
    cpu_offload_with_hook(model, c10::Device(c10::kCPU), user);
    CpuOffload(c10::Device(c10::kCPU), user);
    user.offload();
    user.remove();
  };
  static_cast<void>(all);
}

}  // namespace
}  // namespace accelerate
