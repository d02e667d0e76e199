/// The enumerations of the library's options, with their texts: to_string, from_string, values and
/// contains of enum_text.h.
///
/// A text is the value that HF Accelerate's member has, and is given exactly so; those of
/// FP8BackendType and DynamoBackend may be given in any case, as there. Mirrors: accelerate
/// utils/dataclasses.py, its enumerations.
#pragma once

#include <array>

#include "accelerate/base/enum_text.h"

namespace accelerate {

/// Whose machines a job runs on.
enum class ComputeEnvironment {
  kLocalMachine,  ///< one's own, or a cluster
  kAmazonSageMaker,
};

template <>
struct EnumTable<ComputeEnvironment> {
  using E = ComputeEnvironment;
  static constexpr char kName[] = "ComputeEnvironment";
  static constexpr bool kAnyCase = false;
  static constexpr auto kMembers = std::to_array<EnumMember<E>>({
      {E::kLocalMachine, "LOCAL_MACHINE"},
      {E::kAmazonSageMaker, "AMAZON_SAGEMAKER"},
  });
};

/// What the ranks compute on, or which plug-in spreads the training over them.
enum class DistributedType {
  kNo,  ///< one rank, no process group
  kMultiCpu,
  kMultiGpu,
  kMultiNpu,
  kMultiMlu,
  kMultiSdaa,
  kMultiMusa,
  kMultiXpu,
  kMultiHpu,
  kMultiNeuron,
  kDeepSpeed,  ///< ZeRO
  kFsdp,
  kXla,  ///< TPUs, one rank or several
  kMegatronLm,
};

template <>
struct EnumTable<DistributedType> {
  using E = DistributedType;
  static constexpr char kName[] = "DistributedType";
  static constexpr bool kAnyCase = false;
  static constexpr auto kMembers = std::to_array<EnumMember<E>>({
      {E::kNo, "NO"},
      {E::kMultiCpu, "MULTI_CPU"},
      {E::kMultiGpu, "MULTI_GPU"},
      {E::kMultiNpu, "MULTI_NPU"},
      {E::kMultiMlu, "MULTI_MLU"},
      {E::kMultiSdaa, "MULTI_SDAA"},
      {E::kMultiMusa, "MULTI_MUSA"},
      {E::kMultiXpu, "MULTI_XPU"},
      {E::kMultiHpu, "MULTI_HPU"},
      {E::kMultiNeuron, "MULTI_NEURON"},
      {E::kDeepSpeed, "DEEPSPEED"},
      {E::kFsdp, "FSDP"},
      {E::kXla, "XLA"},
      {E::kMegatronLm, "MEGATRON_LM"},
  });
};

/// Experiment trackers.
enum class LoggerType {
  kAll,  ///< every one that is available
  kAim,
  kTensorBoard,
  kWandb,
  kTrackio,
  kCometMl,
  kMlflow,
  kClearMl,
  kDvcLive,
  kSwanLab,
};

template <>
struct EnumTable<LoggerType> {
  using E = LoggerType;
  static constexpr char kName[] = "LoggerType";
  static constexpr bool kAnyCase = false;
  static constexpr auto kMembers = std::to_array<EnumMember<E>>({
      {E::kAll, "all"},
      {E::kAim, "aim"},
      {E::kTensorBoard, "tensorboard"},
      {E::kWandb, "wandb"},
      {E::kTrackio, "trackio"},
      {E::kCometMl, "comet_ml"},
      {E::kMlflow, "mlflow"},
      {E::kClearMl, "clearml"},
      {E::kDvcLive, "dvclive"},
      {E::kSwanLab, "swanlab"},
  });
};

/// What mixed precision computes in.
enum class PrecisionType {
  kNo,  ///< full precision
  kFp8,
  kFp16,
  kBf16,
};

template <>
struct EnumTable<PrecisionType> {
  using E = PrecisionType;
  static constexpr char kName[] = "PrecisionType";
  static constexpr bool kAnyCase = false;
  static constexpr auto kMembers = std::to_array<EnumMember<E>>({
      {E::kNo, "no"},
      {E::kFp8, "fp8"},
      {E::kFp16, "fp16"},
      {E::kBf16, "bf16"},
  });
};

/// A generator whose state ranks can be made to share. A kind of device stands for the default
/// generator of the rank's device, and only fits a rank that has such a device.
enum class RNGType {
  kTorch,  ///< LibTorch's default CPU generator
  kCuda,
  kMlu,
  kSdaa,
  kMusa,
  kNpu,
  kXla,
  kXpu,
  kHpu,
  kNeuron,
  kDevice,     ///< the rank's device of any kind; on a CPU the same as kTorch
  kGenerator,  ///< one given by hand, such as a sampler's
};

template <>
struct EnumTable<RNGType> {
  using E = RNGType;
  static constexpr char kName[] = "RNGType";
  static constexpr bool kAnyCase = false;
  static constexpr auto kMembers = std::to_array<EnumMember<E>>({
      {E::kTorch, "torch"},
      {E::kCuda, "cuda"},
      {E::kMlu, "mlu"},
      {E::kSdaa, "sdaa"},
      {E::kMusa, "musa"},
      {E::kNpu, "npu"},
      {E::kXla, "xla"},
      {E::kXpu, "xpu"},
      {E::kHpu, "hpu"},
      {E::kNeuron, "neuron"},
      {E::kDevice, "device"},
      {E::kGenerator, "generator"},
  });
};

/// How Amazon SageMaker spreads a training.
enum class SageMakerDistributedType {
  kNo,
  kDataParallel,
  kModelParallel,
};

template <>
struct EnumTable<SageMakerDistributedType> {
  using E = SageMakerDistributedType;
  static constexpr char kName[] = "SageMakerDistributedType";
  static constexpr bool kAnyCase = false;
  static constexpr auto kMembers = std::to_array<EnumMember<E>>({
      {E::kNo, "NO"},
      {E::kDataParallel, "DATA_PARALLEL"},
      {E::kModelParallel, "MODEL_PARALLEL"},
  });
};

/// The implementation of 8-bit floating point.
enum class FP8BackendType {
  kNo,
  kTe,  ///< TransformerEngine
  kMsamp,
  kAo,  ///< torchao
};

template <>
struct EnumTable<FP8BackendType> {
  using E = FP8BackendType;
  static constexpr char kName[] = "FP8BackendType";
  static constexpr bool kAnyCase = true;
  static constexpr auto kMembers = std::to_array<EnumMember<E>>({
      {E::kNo, "NO"},
      {E::kTe, "TE"},
      {E::kMsamp, "MSAMP"},
      {E::kAo, "AO"},
  });
};

/// What compiles a model.
enum class DynamoBackend {
  kNo,
  kEager,
  kAotEager,
  kInductor,
  kAotTsNvfuser,
  kNvprimsNvfuser,
  kCudagraphs,
  kOfi,
  kFx2trt,
  kOnnxrt,
  kTensorrt,
  kAotTorchxlaTraceOnce,
  kTorchxlaTraceOnce,
  kIpex,
  kTvm,
  kHpuBackend,
  kNeuron,
};

template <>
struct EnumTable<DynamoBackend> {
  using E = DynamoBackend;
  static constexpr char kName[] = "DynamoBackend";
  static constexpr bool kAnyCase = true;
  static constexpr auto kMembers = std::to_array<EnumMember<E>>({
      {E::kNo, "NO"},
      {E::kEager, "EAGER"},
      {E::kAotEager, "AOT_EAGER"},
      {E::kInductor, "INDUCTOR"},
      {E::kAotTsNvfuser, "AOT_TS_NVFUSER"},
      {E::kNvprimsNvfuser, "NVPRIMS_NVFUSER"},
      {E::kCudagraphs, "CUDAGRAPHS"},
      {E::kOfi, "OFI"},
      {E::kFx2trt, "FX2TRT"},
      {E::kOnnxrt, "ONNXRT"},
      {E::kTensorrt, "TENSORRT"},
      {E::kAotTorchxlaTraceOnce, "AOT_TORCHXLA_TRACE_ONCE"},
      {E::kTorchxlaTraceOnce, "TORCHXLA_TRACE_ONCE"},
      {E::kIpex, "IPEX"},
      {E::kTvm, "TVM"},
      {E::kHpuBackend, "HPU_BACKEND"},
      {E::kNeuron, "NEURON"},
  });
};

/// What becomes of a bucket of gradients on its way to the other ranks.
enum class DDPCommunicationHookType {
  kNo,
  kFp16,
  kBf16,
  kPowerSgd,
  kBatchedPowerSgd,
};

template <>
struct EnumTable<DDPCommunicationHookType> {
  using E = DDPCommunicationHookType;
  static constexpr char kName[] = "DDPCommunicationHookType";
  static constexpr bool kAnyCase = false;
  static constexpr auto kMembers = std::to_array<EnumMember<E>>({
      {E::kNo, "no"},
      {E::kFp16, "fp16"},
      {E::kBf16, "bf16"},
      {E::kPowerSgd, "power_sgd"},
      {E::kBatchedPowerSgd, "batched_power_sgd"},
  });
};

/// Element types that LibTorch does not have; they only have a size.
enum class CustomDtype {
  kFp8,
  kInt4,
  kInt2,
};

template <>
struct EnumTable<CustomDtype> {
  using E = CustomDtype;
  static constexpr char kName[] = "CustomDtype";
  static constexpr bool kAnyCase = false;
  static constexpr auto kMembers = std::to_array<EnumMember<E>>({
      {E::kFp8, "fp8"},
      {E::kInt4, "int4"},
      {E::kInt2, "int2"},
  });
};

}  // namespace accelerate
