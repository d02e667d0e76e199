/// Checks of what can be used, under Hugging Face Accelerate's names.
///
/// Local. On a real rank the checks of devices answer for the machine, whatever the rank computes
/// on; on a simulated rank for the simulated device. `check_device` also makes a tensor there.
/// Errors:  none, unless stated: what cannot be asked is not available.
/// Mirrors: utils/imports.py.
/// Differs: what is a Python package there is a row of build_info() here.
#pragma once

#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "accelerate/platform/nvidia.h"
#include "accelerate/report/features.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {

// ---- Devices.

bool is_cuda_available(bool check_device = false, const Runtime& runtime = Runtime::current());
/// AMD's GPUs, which are CUDA devices to LibTorch.
bool is_rocm_available(bool check_device = false, const Runtime& runtime = Runtime::current());
bool is_xpu_available(bool check_device = false, const Runtime& runtime = Runtime::current());
bool is_npu_available(bool check_device = false, const Runtime& runtime = Runtime::current());
bool is_mlu_available(bool check_device = false, const Runtime& runtime = Runtime::current());
bool is_musa_available(bool check_device = false, const Runtime& runtime = Runtime::current());
bool is_sdaa_available(bool check_device = false, const Runtime& runtime = Runtime::current());
bool is_neuron_available(bool check_device = false, const Runtime& runtime = Runtime::current());
/// `init_hccl`: checks the device as well, which is what loads its collective library.
bool is_hpu_available(bool init_hccl = false, const Runtime& runtime = Runtime::current());
/// The first generation of Gaudi, which has no fp16.
bool is_habana_gaudi1(const Runtime& runtime = Runtime::current());
/// And LibTorch is of `min_version` or newer.
/// Errors: c10::ValueError for text that is not a version.
bool is_mps_available(const std::string& min_version = "1.12",
                      const Runtime& runtime = Runtime::current());
/// A TPU, with `check_is_gpu` rather a GPU driven through XLA, which does not exist here. False
/// under USE_TORCH_XLA=false.
/// Errors: c10::ValueError with both arguments true, and for a USE_TORCH_XLA that is not a boolean.
bool is_torch_xla_available(bool check_is_tpu = false, bool check_is_gpu = false,
                            const Runtime& runtime = Runtime::current());
/// Intel's collective library is the default backend of its GPUs.
bool is_xccl_available(const Runtime& runtime = Runtime::current());

/// The devices on which this process has a context, so that a forked child could not use them.
/// Mirrors: are_libraries_initialized, which looks for imported modules.
std::vector<c10::Device> initialized_devices();

// ---- Number formats.

/// Whether the devices compute in bfloat16, natively or emulated; `ignore_tpu`: false on a TPU.
bool is_bf16_available(bool ignore_tpu = false, const Runtime& runtime = Runtime::current());
bool is_fp16_available(const Runtime& runtime = Runtime::current());
/// Whether one of the fp8 engines is in this build.
bool is_fp8_available(const Runtime& runtime = Runtime::current());

// ---- NVIDIA.

/// The names of this machine's GPUs and their driver's version; of a simulated machine, the model
/// of each device and no driver.
NvidiaGpus get_gpu_info(const Runtime& runtime = Runtime::current());
/// As in "550.54.15"; empty without a driver.
std::string get_driver_version(const Runtime& runtime = Runtime::current());
/// cuda_p2p_ib_supported() of this machine.
bool check_cuda_p2p_ib_support(const Runtime& runtime = Runtime::current());

// ---- Rows of build_info().

#define ACCELERATE_FEATURE_CHECK(function, feature)                   \
  inline bool function(const Runtime& runtime = Runtime::current()) { \
    return is_feature_available(feature, runtime);                    \
  }

ACCELERATE_FEATURE_CHECK(is_4bit_bnb_available, "bitsandbytes_4bit")
ACCELERATE_FEATURE_CHECK(is_8bit_bnb_available, "bitsandbytes_8bit")
ACCELERATE_FEATURE_CHECK(is_aim_available, "aim")
ACCELERATE_FEATURE_CHECK(is_amdsmi_available, "amdsmi")
ACCELERATE_FEATURE_CHECK(is_bitsandbytes_multi_backend_available, "bitsandbytes_multi_backend")
ACCELERATE_FEATURE_CHECK(is_bnb_available, "bnb")
ACCELERATE_FEATURE_CHECK(is_boto3_available, "boto3")
ACCELERATE_FEATURE_CHECK(is_clearml_available, "clearml")
ACCELERATE_FEATURE_CHECK(is_comet_ml_available, "comet_ml")
ACCELERATE_FEATURE_CHECK(is_datasets_available, "datasets")
ACCELERATE_FEATURE_CHECK(is_deepspeed_available, "deepspeed")
ACCELERATE_FEATURE_CHECK(is_dvclive_available, "dvclive")
ACCELERATE_FEATURE_CHECK(is_import_timer_available, "import_timer")
ACCELERATE_FEATURE_CHECK(is_ipex_available, "ipex")
ACCELERATE_FEATURE_CHECK(is_lomo_available, "lomo")
ACCELERATE_FEATURE_CHECK(is_matplotlib_available, "matplotlib")
ACCELERATE_FEATURE_CHECK(is_megatron_lm_available, "megatron_lm")
ACCELERATE_FEATURE_CHECK(is_mlflow_available, "mlflow")
ACCELERATE_FEATURE_CHECK(is_msamp_available, "msamp")
ACCELERATE_FEATURE_CHECK(is_numpy_available, "numpy")
ACCELERATE_FEATURE_CHECK(is_pandas_available, "pandas")
ACCELERATE_FEATURE_CHECK(is_peft_available, "peft")
ACCELERATE_FEATURE_CHECK(is_pippy_available, "pippy")
ACCELERATE_FEATURE_CHECK(is_pynvml_available, "pynvml")
ACCELERATE_FEATURE_CHECK(is_pytest_available, "pytest")
ACCELERATE_FEATURE_CHECK(is_rich_available, "rich")
ACCELERATE_FEATURE_CHECK(is_sagemaker_available, "sagemaker")
ACCELERATE_FEATURE_CHECK(is_schedulefree_available, "schedulefree")
ACCELERATE_FEATURE_CHECK(is_swanlab_available, "swanlab")
ACCELERATE_FEATURE_CHECK(is_tensorboard_available, "tensorboard")
ACCELERATE_FEATURE_CHECK(is_timm_available, "timm")
ACCELERATE_FEATURE_CHECK(is_torch_distributed_available, "torch_distributed")
ACCELERATE_FEATURE_CHECK(is_torchao_available, "torchao")
ACCELERATE_FEATURE_CHECK(is_torchdata_available, "torchdata")
ACCELERATE_FEATURE_CHECK(is_torchdata_stateful_dataloader_available,
                         "torchdata_stateful_dataloader")
ACCELERATE_FEATURE_CHECK(is_torchvision_available, "torchvision")
ACCELERATE_FEATURE_CHECK(is_tqdm_available, "tqdm")
ACCELERATE_FEATURE_CHECK(is_trackio_available, "trackio")
ACCELERATE_FEATURE_CHECK(is_transformer_engine_available, "transformer_engine")
ACCELERATE_FEATURE_CHECK(is_transformer_engine_mxfp8_available, "transformer_engine_mxfp8")
ACCELERATE_FEATURE_CHECK(is_transformers_available, "transformers")
ACCELERATE_FEATURE_CHECK(is_triton_available, "triton")
ACCELERATE_FEATURE_CHECK(is_wandb_available, "wandb")
ACCELERATE_FEATURE_CHECK(is_weights_only_available, "weights_only")

#undef ACCELERATE_FEATURE_CHECK

}  // namespace accelerate
