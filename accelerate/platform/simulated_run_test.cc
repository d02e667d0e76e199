#include "accelerate/platform/simulated_run.h"

#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

using ::testing::ElementsAre;

Environment with(const std::map<std::string, std::string>& variables) {
  Environment environment;
  for (const auto& [name, value] : environment.variables()) environment.unset(name);
  for (const auto& [name, value] : variables) environment.set(name, value);
  return environment;
}

TEST(CommandLine, BeginsWithTheProgramAsItWasCalled) {
  EXPECT_EQ(command_line().front(), std::string(program_invocation_name));
}

TEST(RepeatLine, NamesTheClusterTheSeedAndTheSettings) {
  EXPECT_EQ(repeat_line(with({{"ACCELERATE_SIMULATE", "2x4:h100"},
                              {"ACCELERATE_SIMULATE_SEED", "7"},
                              {"ACCELERATE_SIMULATE_FLAGS", "--use_fsdp --fsdp_version 2"},
                              {"ACCELERATE_SIMULATE_VARIABLES", "PYTORCH_ALLOC_CONF=a:b"},
                              {"ACCELERATE_USE_FSDP", "true"}}),
                        {"./train", "a b"}),
            "PYTORCH_ALLOC_CONF=a:b accelerate launch --simulate 2x4:h100 --simulate_seed 7 "
            "--use_fsdp --fsdp_version 2 --no_default_config ./train 'a b'");
  EXPECT_EQ(repeat_line(with({{"ACCELERATE_SIMULATE", "{\"nodes\": 1}"},
                              {"ACCELERATE_SIMULATE_NUMERICS", "shapes"},
                              {"ACCELERATE_SIMULATE_UNKNOWN_VALUES", "nan"},
                              {"ACCELERATE_SIMULATE_FOLD", "true"},
                              {"ACCELERATE_SIMULATE_NO_DETECT", "races,leaks"},
                              {"ACCELERATE_SIMULATE_FAULTS", "rank 3 at step 12: crash"},
                              {"ACCELERATE_SIMULATE_TIMEOUTS", "wait"},
                              {"ACCELERATE_SIMULATE_SEMANTICS", "nccl"},
                              {"ACCELERATE_SIMULATE_FLAGS", ""}}),
                        {"train"}),
            "accelerate launch --simulate '{\"nodes\": 1}' --simulate_seed 0 --simulate_numerics "
            "shapes --simulate_unknown_values nan --simulate_fold --no_detect races,leaks "
            "--faults 'rank 3 at step 12: crash' --timeouts wait --semantics nccl "
            "--no_default_config train");
}

// A program that was started without the launcher.
TEST(RepeatLine, SetsTheVariablesThatTheProgramFound) {
  EXPECT_EQ(repeat_line(with({{"ACCELERATE_SIMULATE", "1x2"},
                              {"ACCELERATE_SIMULATE_REPORT", "r"},
                              {"ACCELERATE_MIXED_PRECISION", "bf16"},
                              {"FSDP_TRANSFORMER_CLS_TO_WRAP", "A B"},
                              {"OMP_NUM_THREADS", "4"},
                              {"PATH", "/bin"}}),
                        {"train"}),
            "ACCELERATE_MIXED_PRECISION=bf16 FSDP_TRANSFORMER_CLS_TO_WRAP='A B' OMP_NUM_THREADS=4 "
            "accelerate launch --simulate 1x2 --simulate_seed 0 --no_default_config train");
}

// A run that one of them shaped is not repeated without it.
TEST(ShapingVariables, AreThoseOfEverySetting) {
  for (const char* name : {"ACCELERATE_MIXED_PRECISION",
                           "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
                           "ACCELERATE_GRADIENT_CLIPPING",
                           "ACCELERATE_FP8_BACKEND",
                           "ACCELERATE_USE_DEEPSPEED",
                           "ACCELERATE_USE_FSDP",
                           "ACCELERATE_USE_MEGATRON_LM",
                           "ACCELERATE_USE_PARALLELISM_CONFIG",
                           "ACCELERATE_DEEPSPEED_ZERO_STAGE",
                           "ACCELERATE_CONFIG_DS_FIELDS",
                           "ACCELERATE_DYNAMO_BACKEND",
                           "ACCELERATE_BYPASS_DEVICE_MAP",
                           "ACCELERATE_INIT_INCLUDE_BUFFERS",
                           "FSDP_VERSION",
                           "PARALLELISM_CONFIG_DP_SHARD_SIZE",
                           "MEGATRON_LM_TP_DEGREE",
                           "PYTORCH_ALLOC_CONF",
                           "PYTORCH_CUDA_ALLOC_CONF",
                           "OMP_NUM_THREADS",
                           "ATEN_CPU_CAPABILITY",
                           "ONEDNN_MAX_CPU_ISA"}) {
    EXPECT_THAT(shaping_variables({{name, "2"}}), ElementsAre(std::string(name) + "=2"));
  }
}

TEST(RunVariables, AreTheOnesThatLaunchersSet) {
  for (const char* name :
       {"ACCELERATE_USE_CPU", "FSDP_VERSION", "PARALLELISM_CONFIG_TP_SIZE", "MEGATRON_LM_TP_DEGREE",
        "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
    EXPECT_TRUE(is_run_variable(name)) << name;
  }
  for (const char* name : {"OMP_NUM_THREADS", "HOME", "FSDP", "MY_ACCELERATE_X", "accelerate_x"}) {
    EXPECT_FALSE(is_run_variable(name)) << name;
  }
}

TEST(ShapingVariables, LeaveOutWhatASimulationDoesNotRead) {
  EXPECT_THAT(shaping_variables({{"OMP_NUM_THREADS", "1"},
                                 {"ACCELERATE_USE_CPU", "true"},
                                 {"ACCELERATE_TORCH_DEVICE", "cpu"},
                                 {"ACCELERATE_DEBUG_MODE", "true"},
                                 {"ACCELERATE_SIMULATE_SEED", "4"},
                                 {"ACCELERATE_OF_SOMEBODY_ELSE", "1"},
                                 {"HOME", "/root"},
                                 {"WORLD_SIZE", "8"}}),
              ElementsAre());
  EXPECT_THAT(shaping_variables({{"PARALLELISM_CONFIG_TP_SIZE", "2"},
                                 {"ATEN_CPU_CAPABILITY", "avx2"},
                                 {"PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"}}),
              ElementsAre("ATEN_CPU_CAPABILITY=avx2", "PARALLELISM_CONFIG_TP_SIZE=2",
                          "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"));
}

}  // namespace
}  // namespace accelerate
