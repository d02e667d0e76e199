/// Checks of what can be used, under Hugging Face Accelerate's names.
///
/// Local. On a real rank the checks of devices answer for the machine, whatever the rank computes
/// on; on a simulated rank for the simulated device. `check_device` also makes a tensor there.
/// Errors:  none, unless stated: what cannot be asked is not available.
/// Threads: any.
/// Mirrors: accelerate utils/imports.py; torchao_required (here require_feature) and
///          deepspeed_required (here require_feature).
/// Differs: what is a Python package there is a row of build_info() here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <c10/core/Device.h>

#include "accelerate/platform/nvidia.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {

namespace internal {

// Called like functions of these parameters.
struct DeviceCheck {
  const char* family;
  bool operator()(bool check_device = false, const Runtime& runtime = Runtime::current()) const;
};
struct FeatureCheck {
  const char* name;
  bool operator()(Runtime& runtime = Runtime::current()) const;
};
struct VersionedFeatureCheck {
  const char* name;
  bool operator()(const std::string& min_version = "", Runtime& runtime = Runtime::current()) const;
  bool operator()(Runtime& runtime) const;
};

// Whether a folder such as /sys/bus/pci/devices lists a first Gaudi.
bool has_gaudi1(const std::string& pci_devices);

}  // namespace internal

// ---- Devices.

inline constexpr internal::DeviceCheck is_cuda_available{"gpu"};
/// AMD's GPUs, which are CUDA devices to LibTorch.
bool is_rocm_available(bool check_device = false, const Runtime& runtime = Runtime::current());
inline constexpr internal::DeviceCheck is_xpu_available{"xpu"};
inline constexpr internal::DeviceCheck is_npu_available{"npu"};
inline constexpr internal::DeviceCheck is_mlu_available{"mlu"};
inline constexpr internal::DeviceCheck is_musa_available{"musa"};
inline constexpr internal::DeviceCheck is_sdaa_available{"sdaa"};
inline constexpr internal::DeviceCheck is_neuron_available{"neuron"};
/// `check_device`: checks the device as well, which is what loads its collective library.
inline constexpr internal::DeviceCheck is_hpu_available{"hpu"};
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
inline bool is_xccl_available(const Runtime& runtime = Runtime::current()) {
  return is_xpu_available(false, runtime);
}

/// The devices on which this process has a context, so that a forked child could not use them.
/// Mirrors: are_libraries_initialized (here initialized_devices), which looks for imported modules.
std::vector<c10::Device> initialized_devices();

// ---- Number formats.

/// Whether the devices compute in bfloat16, natively or emulated; `ignore_tpu`: false on a TPU.
bool is_bf16_available(bool ignore_tpu = false, const Runtime& runtime = Runtime::current());
inline bool is_fp16_available(const Runtime& runtime = Runtime::current()) {
  return !is_habana_gaudi1(runtime);
}
/// Whether one of the fp8 engines is in this build.
bool is_fp8_available(Runtime& runtime = Runtime::current());

// ---- NVIDIA.

/// The names of this machine's GPUs and their driver's version; of a simulated machine, the model
/// of each device and no driver.
NvidiaGpus get_gpu_info(const Runtime& runtime = Runtime::current());
/// As in "550.54.15"; empty without a driver.
inline std::string get_driver_version(const Runtime& runtime = Runtime::current()) {
  return get_gpu_info(runtime).driver_version;
}
/// cuda_p2p_ib_supported() of this machine.
inline bool check_cuda_p2p_ib_support(const Runtime& runtime = Runtime::current()) {
  return cuda_p2p_ib_supported(get_gpu_info(runtime));
}

// ---- What this build can do, by name: one table that answers for what is a package to install in
// ---- Python. Answers do not change while a program runs, but for tools that are looked up.

/// The kind of a feature's name in Python.
enum class FeatureKind {
  kPackage,  ///< a package for which there is nothing to import in C++
  kEngine,   ///< an engine with a native replacement here
  kTracker,  ///< a service that records experiments
  kLibrary,  ///< a system library that is looked up at run time
  kBuild,    ///< part of LibTorch, or of this project
};

struct Feature {
  std::string name;
  FeatureKind kind;
  bool available = false;
  /// Its replacement here, or the reason why there is none.
  std::string note;
};

/// The compiler's view of this build.
struct BuildInfo {
  std::string version;           ///< of this project
  std::string libtorch_version;  ///< as compiled against
  std::string compiler;
  std::string flags;  ///< "optimised", "assertions", sanitizers
  /// Sorted by name.
  std::vector<Feature> features;
};

/// A simulated rank gets the same answers on every machine: what would be looked up is missing. A
/// tracker is available if `log_with` takes it; to ask whether Python has a package, a tracker may
/// start it once in this process.
BuildInfo build_info(Runtime& runtime = Runtime::current());

/// Errors: c10::ValueError listing the known names for an unknown one.
bool is_feature_available(std::string_view name, Runtime& runtime = Runtime::current());

/// Errors: c10::NotImplementedError naming the feature and why it is missing; as above.
void require_feature(std::string_view name, Runtime& runtime = Runtime::current());

// ---- Rows of build_info().
//
// `min_version` is that of the Python package; whatever takes its place fits all versions.
// Errors: c10::ValueError for a min_version that is not a version.

inline constexpr internal::FeatureCheck is_4bit_bnb_available{"bitsandbytes_4bit"};
inline constexpr internal::FeatureCheck is_8bit_bnb_available{"bitsandbytes_8bit"};
inline constexpr internal::FeatureCheck is_aim_available{"aim"};
inline constexpr internal::FeatureCheck is_amdsmi_available{"amdsmi"};
inline constexpr internal::FeatureCheck is_bitsandbytes_multi_backend_available{
    "bitsandbytes_multi_backend"};
inline constexpr internal::VersionedFeatureCheck is_bnb_available{"bnb"};
inline constexpr internal::FeatureCheck is_boto3_available{"boto3"};
inline constexpr internal::FeatureCheck is_clearml_available{"clearml"};
inline constexpr internal::FeatureCheck is_comet_ml_available{"comet_ml"};
inline constexpr internal::FeatureCheck is_datasets_available{"datasets"};
inline constexpr internal::FeatureCheck is_deepspeed_available{"deepspeed"};
inline constexpr internal::FeatureCheck is_dvclive_available{"dvclive"};
inline constexpr internal::FeatureCheck is_import_timer_available{"import_timer"};
inline constexpr internal::FeatureCheck is_ipex_available{"ipex"};
inline constexpr internal::FeatureCheck is_lomo_available{"lomo"};
inline constexpr internal::FeatureCheck is_matplotlib_available{"matplotlib"};
inline constexpr internal::FeatureCheck is_megatron_lm_available{"megatron_lm"};
inline constexpr internal::FeatureCheck is_mlflow_available{"mlflow"};
inline constexpr internal::FeatureCheck is_msamp_available{"msamp"};
inline constexpr internal::VersionedFeatureCheck is_numpy_available{"numpy"};
inline constexpr internal::FeatureCheck is_pandas_available{"pandas"};
inline constexpr internal::FeatureCheck is_peft_available{"peft"};
inline constexpr internal::FeatureCheck is_pippy_available{"pippy"};
inline constexpr internal::FeatureCheck is_pynvml_available{"pynvml"};
inline constexpr internal::FeatureCheck is_pytest_available{"pytest"};
inline constexpr internal::FeatureCheck is_rich_available{"rich"};
inline constexpr internal::FeatureCheck is_sagemaker_available{"sagemaker"};
inline constexpr internal::FeatureCheck is_schedulefree_available{"schedulefree"};
inline constexpr internal::FeatureCheck is_swanlab_available{"swanlab"};
inline constexpr internal::FeatureCheck is_tensorboard_available{"tensorboard"};
inline constexpr internal::FeatureCheck is_timm_available{"timm"};
inline constexpr internal::FeatureCheck is_torch_distributed_available{"torch_distributed"};
inline constexpr internal::FeatureCheck is_torchao_available{"torchao"};
inline constexpr internal::FeatureCheck is_torchdata_available{"torchdata"};
inline constexpr internal::FeatureCheck is_torchdata_stateful_dataloader_available{
    "torchdata_stateful_dataloader"};
inline constexpr internal::FeatureCheck is_torchvision_available{"torchvision"};
inline constexpr internal::FeatureCheck is_tqdm_available{"tqdm"};
inline constexpr internal::FeatureCheck is_trackio_available{"trackio"};
inline constexpr internal::FeatureCheck is_transformer_engine_available{"transformer_engine"};
inline constexpr internal::FeatureCheck is_transformer_engine_mxfp8_available{
    "transformer_engine_mxfp8"};
inline constexpr internal::FeatureCheck is_transformers_available{"transformers"};
inline constexpr internal::FeatureCheck is_triton_available{"triton"};
inline constexpr internal::FeatureCheck is_wandb_available{"wandb"};
inline constexpr internal::FeatureCheck is_weights_only_available{"weights_only"};

}  // namespace accelerate
