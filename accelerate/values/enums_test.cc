#include "accelerate/base/enums.h"

#include <string>
#include <vector>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/base/constants.h"
#include "accelerate/values/texts.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename E>
std::vector<std::string> named() {
  std::vector<std::string> texts;
  for (E value : values<E>()) texts.emplace_back(to_string(value));
  return texts;
}

TEST(Enums, HaveThePeersTexts) {
  EXPECT_THAT(named<ComputeEnvironment>(), ElementsAre("LOCAL_MACHINE", "AMAZON_SAGEMAKER"));
  EXPECT_THAT(named<DistributedType>(),
              ElementsAre("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA",
                          "MULTI_MUSA", "MULTI_XPU", "MULTI_HPU", "MULTI_NEURON", "DEEPSPEED",
                          "FSDP", "XLA", "MEGATRON_LM"));
  EXPECT_THAT(named<LoggerType>(),
              ElementsAre("all", "aim", "tensorboard", "wandb", "trackio", "comet_ml", "mlflow",
                          "clearml", "dvclive", "swanlab"));
  EXPECT_THAT(named<PrecisionType>(), ElementsAre("no", "fp8", "fp16", "bf16"));
  EXPECT_THAT(named<RNGType>(), ElementsAre("torch", "cuda", "mlu", "sdaa", "musa", "npu", "xla",
                                            "xpu", "hpu", "neuron", "device", "generator"));
  EXPECT_THAT(named<SageMakerDistributedType>(),
              ElementsAre("NO", "DATA_PARALLEL", "MODEL_PARALLEL"));
  EXPECT_THAT(named<FP8BackendType>(), ElementsAre("NO", "TE", "MSAMP", "AO"));
  EXPECT_THAT(
      named<DynamoBackend>(),
      ElementsAre("NO", "EAGER", "AOT_EAGER", "INDUCTOR", "AOT_TS_NVFUSER", "NVPRIMS_NVFUSER",
                  "CUDAGRAPHS", "OFI", "FX2TRT", "ONNXRT", "TENSORRT", "AOT_TORCHXLA_TRACE_ONCE",
                  "TORCHXLA_TRACE_ONCE", "IPEX", "TVM", "HPU_BACKEND", "NEURON"));
  EXPECT_THAT(named<DDPCommunicationHookType>(),
              ElementsAre("no", "fp16", "bf16", "power_sgd", "batched_power_sgd"));
  EXPECT_THAT(named<CustomDtype>(), ElementsAre("fp8", "int4", "int2"));
}

template <typename E>
void expect_there_and_back() {
  for (E value : values<E>()) {
    EXPECT_TRUE(contains<E>(to_string(value)));
    EXPECT_EQ(from_string<E>(to_string(value)), value) << to_string(value);
  }
}

TEST(Enums, ComeBackFromTheirTexts) {
  expect_there_and_back<ComputeEnvironment>();
  expect_there_and_back<DistributedType>();
  expect_there_and_back<LoggerType>();
  expect_there_and_back<PrecisionType>();
  expect_there_and_back<RNGType>();
  expect_there_and_back<SageMakerDistributedType>();
  expect_there_and_back<FP8BackendType>();
  expect_there_and_back<DynamoBackend>();
  expect_there_and_back<DDPCommunicationHookType>();
  expect_there_and_back<CustomDtype>();
}

TEST(Enums, AreGivenAsTheyAreWrittenButForCompilersAndFp8Backends) {
  EXPECT_FALSE(contains<PrecisionType>("BF16"));
  EXPECT_FALSE(contains<DistributedType>("multi_gpu"));
  EXPECT_FALSE(contains<RNGType>(""));
  EXPECT_EQ(from_string<DynamoBackend>("inductor"), DynamoBackend::kInductor);
  EXPECT_EQ(from_string<FP8BackendType>("MsAmp"), FP8BackendType::kMsamp);
}

TEST(Enums, NameWhatThereIsWhenATextIsUnknown) {
  try {
    from_string<PrecisionType>("fp32");
    FAIL() << "no exception";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what_without_backtrace(), AllOf(HasSubstr("unknown PrecisionType \"fp32\""),
                                                      HasSubstr("no, fp8, fp16, bf16")));
  }
}

TEST(Constants, NameTheFilesOfACheckpoint) {
  EXPECT_STREQ(kSafeModelName, "model");
  EXPECT_STREQ(kOptimizerName, "optimizer");
  EXPECT_STREQ(kSchedulerName, "scheduler");
  EXPECT_STREQ(kRngStateName, "random_states");
  EXPECT_STREQ(kScalerName, "scaler");
  EXPECT_STREQ(kWeightsName, "pytorch_model.bin");
  EXPECT_STREQ(kFsdpModelName, "pytorch_model_fsdp");
  EXPECT_STREQ(kSafeWeightsName, "model.safetensors");
  EXPECT_EQ(std::string(kSafeWeightsIndexName), std::string(kSafeWeightsName) + ".index.json");
  EXPECT_EQ(with_suffix(kSafeWeightsPatternName, ""), kSafeWeightsName);
  EXPECT_EQ(with_suffix(kSafeWeightsPatternName, "-00001-of-00002"),
            "model-00001-of-00002.safetensors");
  EXPECT_EQ(with_suffix(kProfilePatternName, "3"), "profile_3.json");
  EXPECT_EQ(with_suffix("plain", "3"), "plain");
}

}  // namespace
}  // namespace accelerate
