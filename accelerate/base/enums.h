/// The enumerations of the library's options, with their texts: to_string, from_string, values and
/// contains of enum_text.h.
///
/// A text is the value that HF Accelerate's member has, and is given exactly so; those of
/// FP8BackendType and DynamoBackend may be given in any case, as there.
/// Mirrors: accelerate utils/dataclasses.py, its enumerations.
#pragma once

#include "accelerate/base/enum_text.h"

namespace accelerate {

/// The kind of machines that a job runs on.
enum class ComputeEnvironment {
  kLocalMachine,  ///< one's own, or a cluster
  kAmazonSageMaker,
};

ACCELERATE_ENUM_TEXTS(ComputeEnvironment, "ComputeEnvironment", "LOCAL_MACHINE", "AMAZON_SAGEMAKER")

/// The devices that ranks compute on, or the plug-in that spreads the training over them.
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

ACCELERATE_ENUM_TEXTS(DistributedType, "DistributedType", "NO", "MULTI_CPU", "MULTI_GPU",
                      "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA", "MULTI_XPU",
                      "MULTI_HPU", "MULTI_NEURON", "DEEPSPEED", "FSDP", "XLA", "MEGATRON_LM")

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

ACCELERATE_ENUM_TEXTS(LoggerType, "LoggerType", "all", "aim", "tensorboard", "wandb", "trackio",
                      "comet_ml", "mlflow", "clearml", "dvclive", "swanlab")

/// The number format that mixed precision computes in.
enum class PrecisionType {
  kNo,  ///< full precision
  kFp8,
  kFp16,
  kBf16,
};

ACCELERATE_ENUM_TEXTS(PrecisionType, "PrecisionType", "no", "fp8", "fp16", "bf16")

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

ACCELERATE_ENUM_TEXTS(RNGType, "RNGType", "torch", "cuda", "mlu", "sdaa", "musa", "npu", "xla",
                      "xpu", "hpu", "neuron", "device", "generator")

/// How Amazon SageMaker spreads a training.
enum class SageMakerDistributedType {
  kNo,
  kDataParallel,
  kModelParallel,
};

ACCELERATE_ENUM_TEXTS(SageMakerDistributedType, "SageMakerDistributedType", "NO", "DATA_PARALLEL",
                      "MODEL_PARALLEL")

/// The implementation of 8-bit floating point.
enum class FP8BackendType {
  kNo,
  kTe,  ///< TransformerEngine
  kMsamp,
  kAo,  ///< torchao
};

ACCELERATE_ENUM_TEXTS_IN_ANY_CASE(FP8BackendType, "FP8BackendType", "NO", "TE", "MSAMP", "AO")

/// The compiler of a model.
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

ACCELERATE_ENUM_TEXTS_IN_ANY_CASE(DynamoBackend, "DynamoBackend", "NO", "EAGER", "AOT_EAGER",
                                  "INDUCTOR", "AOT_TS_NVFUSER", "NVPRIMS_NVFUSER", "CUDAGRAPHS",
                                  "OFI", "FX2TRT", "ONNXRT", "TENSORRT", "AOT_TORCHXLA_TRACE_ONCE",
                                  "TORCHXLA_TRACE_ONCE", "IPEX", "TVM", "HPU_BACKEND", "NEURON")

/// What ranks divide in sharded training, and what they keep after a forward pass. HF Accelerate's
/// numbers begin at 1.
enum class ShardingStrategy {
  kFullShard,         ///< parameters, gradients and optimizer state; freed after the forward pass
  kShardGradOp,       ///< as kFullShard, but parameters stay until the backward pass has used them
  kNoShard,           ///< nothing: replicas
  kHybridShard,       ///< kFullShard within a node or dp_shard, replicas of that beyond
  kHybridShardZero2,  ///< kShardGradOp within a node or dp_shard, replicas of that beyond
};

ACCELERATE_ENUM_TEXTS_IN_ANY_CASE(ShardingStrategy, "ShardingStrategy", "FULL_SHARD",
                                  "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")

/// Whether a strategy divides within a node or dp_shard, and has replicas beyond.
constexpr bool is_hybrid(ShardingStrategy strategy) {
  return strategy == ShardingStrategy::kHybridShard ||
         strategy == ShardingStrategy::kHybridShardZero2;
}

/// When the next group of parameters is gathered in a backward pass: before or after the gradients
/// of the current one.
enum class BackwardPrefetch {
  kBackwardPre,
  kBackwardPost,
};

ACCELERATE_ENUM_TEXTS_IN_ANY_CASE(BackwardPrefetch, "BackwardPrefetch", "BACKWARD_PRE",
                                  "BACKWARD_POST")

/// In what form a sharded model's state is saved: whole, as this layout of ranks alone can read it,
/// or divided so that any layout can.
enum class StateDictType {
  kFullStateDict,
  kLocalStateDict,
  kShardedStateDict,
};

ACCELERATE_ENUM_TEXTS_IN_ANY_CASE(StateDictType, "StateDictType", "FULL_STATE_DICT",
                                  "LOCAL_STATE_DICT", "SHARDED_STATE_DICT")

/// Which modules of a model become units of sharding.
enum class AutoWrapPolicy {
  kTransformerBasedWrap,  ///< those of the listed classes
  kSizeBasedWrap,         ///< those with enough parameters
  kNoWrap,                ///< the root alone
};

ACCELERATE_ENUM_TEXTS_IN_ANY_CASE(AutoWrapPolicy, "AutoWrapPolicy", "TRANSFORMER_BASED_WRAP",
                                  "SIZE_BASED_WRAP", "NO_WRAP")

/// How a bucket of gradients is changed on its way to the other ranks.
enum class DDPCommunicationHookType {
  kNo,
  kFp16,
  kBf16,
  kPowerSgd,
  kBatchedPowerSgd,
};

ACCELERATE_ENUM_TEXTS(DDPCommunicationHookType, "DDPCommunicationHookType", "no", "fp16", "bf16",
                      "power_sgd", "batched_power_sgd")

/// Element types that LibTorch does not have; they only have a size.
enum class CustomDtype {
  kFp8,
  kInt4,
  kInt2,
};

ACCELERATE_ENUM_TEXTS(CustomDtype, "CustomDtype", "fp8", "int4", "int2")

}  // namespace accelerate
