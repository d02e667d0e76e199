#include "launch/dialogue/questionnaire.h"

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_join.h"

// The questions about engines, as they are asked once their settings' status says that they work.

namespace accelerate::launcher::dialogue {
namespace {

using Json = nlohmann::ordered_json;

Json answered(const std::vector<std::string>& answers) {
  std::istringstream in(absl::StrJoin(answers, "\n") + "\n");
  std::ostringstream out;
  Prompter prompter(in, out, false);
  settings::ConfigFile config;
  const absl::Status asked = ask_configuration(prompter, {.home = "/me"}, config,
                                               [](const settings::Setting&) { return true; });
  EXPECT_TRUE(asked.ok()) << asked << out.str();
  return config.values;
}

TEST(Questionnaire, AnswersToFsdpGetToItsSection) {
  const Json second = answered({"this machine",
                                "multi-GPU",
                                "",
                                "",
                                "",
                                "no",
                                "yes",
                                "2",
                                "no",
                                "yes",
                                "SIZE_BASED_WRAP",
                                "1000",
                                "SHARDED_STATE_DICT",
                                "",
                                "yes",
                                "yes",
                                "2",
                                "2",
                                "1",
                                "2",
                                "alltoall",
                                "8",
                                "",
                                "",
                                "bf16"});
  EXPECT_EQ(second["distributed_type"], "FSDP");
  EXPECT_EQ(nlohmann::json(second["fsdp_config"]),
            nlohmann::json::parse(R"({"fsdp_version": 2, "fsdp_reshard_after_forward": false,
      "fsdp_offload_params": true, "fsdp_auto_wrap_policy": "SIZE_BASED_WRAP",
      "fsdp_min_num_params": 1000, "fsdp_state_dict_type": "SHARDED_STATE_DICT",
      "fsdp_cpu_ram_efficient_loading": true, "fsdp_activation_checkpointing": true})"));
  EXPECT_EQ(second["parallelism_config"]["parallelism_config_cp_comm_strategy"], "alltoall");
  EXPECT_EQ(second["parallelism_config"]["parallelism_config_dp_shard_size"], 2);
  EXPECT_EQ(second["num_processes"], 8);

  // Ranks divide sequences in one way.
  const Json sequences = answered({"this machine",
                                   "multi-GPU",
                                   "",
                                   "",
                                   "",
                                   "no",
                                   "yes",
                                   "2",
                                   "no",
                                   "yes",
                                   "SIZE_BASED_WRAP",
                                   "1000",
                                   "SHARDED_STATE_DICT",
                                   "",
                                   "yes",
                                   "yes",
                                   "1",
                                   "2",
                                   "1",
                                   "1",
                                   "4",
                                   "8",
                                   "",
                                   "",
                                   "bf16"});
  EXPECT_EQ(sequences["parallelism_config"]["parallelism_config_cp_size"], 1);
  EXPECT_EQ(sequences["parallelism_config"]["parallelism_config_sp_size"], 4);
  EXPECT_EQ(sequences["num_processes"], 8);

  const Json first = answered({"0",
                               "4",
                               "",
                               "",
                               "",
                               "",
                               "yes",
                               "1",
                               "HYBRID_SHARD",
                               "",
                               "0",
                               "no",
                               "Block",
                               "BACKWARD_POST",
                               "2",
                               "",
                               "",
                               "yes",
                               "no",
                               "2",
                               "",
                               "",
                               ""});
  EXPECT_EQ(first["fsdp_config"]["fsdp_sharding_strategy"], "HYBRID_SHARD");
  EXPECT_EQ(first["fsdp_config"]["fsdp_transformer_layer_cls_to_wrap"], "Block");
  EXPECT_EQ(first["fsdp_config"]["fsdp_backward_prefetch"], "BACKWARD_POST");
  EXPECT_EQ(first["fsdp_config"]["fsdp_sync_module_states"], true);
}

TEST(Questionnaire, AnswersToDeepSpeedGetToItsSection) {
  const Json config = answered({"0",  "multi-GPU", "2",    "1",   "host", "1234", "no",   "c10d",
                                "",   "",          "yes",  "no",  "3",    "cpu",  "nvme", "/fast",
                                "4",  "yes",       "0.5",  "yes", "yes",  "no",   "pdsh", "hosts",
                                "no", "yes",       "h1:0", "16",  "",     "fp16"});
  EXPECT_EQ(config["distributed_type"], "DEEPSPEED");
  EXPECT_EQ(config["rdzv_backend"], "c10d");
  const Json& section = config["deepspeed_config"];
  EXPECT_EQ(section["zero_stage"], 3);
  EXPECT_EQ(section["offload_optimizer_device"], "cpu");
  EXPECT_EQ(section["offload_param_device"], "nvme");
  EXPECT_EQ(section["offload_param_nvme_path"], "/fast");
  EXPECT_EQ(section["gradient_accumulation_steps"], 4);
  EXPECT_EQ(section["gradient_clipping"], 0.5);
  EXPECT_EQ(section["zero3_save_16bit_model"], true);
  EXPECT_EQ(section["zero3_init_flag"], true);
  EXPECT_EQ(section["deepspeed_multinode_launcher"], "pdsh");
  EXPECT_EQ(section["deepspeed_inclusion_filter"], "h1:0");
}

}  // namespace
}  // namespace accelerate::launcher::dialogue
