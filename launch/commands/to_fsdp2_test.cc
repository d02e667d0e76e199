#include "launch/commands/commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "accelerate/platform/host_files.h"
#include "launch/testing/commands/command_tester.h"

namespace accelerate::launcher::commands {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kVersion1[] = R"(compute_environment: LOCAL_MACHINE
distributed_type: FSDP
num_processes: 2
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_cpu_ram_efficient_loading: true
  fsdp_forward_prefetch: false
  fsdp_offload_params: false
  fsdp_sharding_strategy: SHARD_GRAD_OP
  state_dict_type: SHARDED_STATE_DICT
  fsdp_sync_module_states: true
  fsdp_transformer_layer_cls_to_wrap: BertLayer
  fsdp_use_orig_params: true
)";

class ToFsdp2 : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& contents) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << contents;
    return path;
  }

  static std::string read(const std::string& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }

  // The setting that fsdp_sharding_strategy becomes.
  static nlohmann::ordered_json reshards(const std::string& strategy) {
    auto config = settings::parse_config(
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: " + strategy + "\n",
        settings::ConfigFormat::kYaml, "test");
    EXPECT_TRUE(config.ok()) << config.status();
    std::vector<Notice> notices;
    EXPECT_TRUE(convert_to_fsdp2(*config, notices));
    return config->values["fsdp_config"]["fsdp_reshard_after_forward"];
  }

  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
};

TEST_F(ToFsdp2, KeepsDropsAndTranslatesKeys) {
  const std::string in = write("a.yaml", kVersion1);
  const std::string out = folder_ + "/b.yaml";
  const CommandResult result = run_command(kToFsdp2, {"--config_file", in, "--output_file", out});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err,
              HasSubstr("warning: Argument fsdp_forward_prefetch is not yet implemented"));
  EXPECT_EQ(read(in), kVersion1);
  const auto config = settings::load_config_file(out);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->values.at("num_processes"), 2);
  EXPECT_EQ(config->values.at("fsdp_config"), nlohmann::ordered_json::parse(R"({
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_cpu_ram_efficient_loading": true,
    "fsdp_offload_params": false, "fsdp_reshard_after_forward": false,
    "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    "fsdp_transformer_layer_cls_to_wrap": "BertLayer", "fsdp_version": 2})"));
}

TEST_F(ToFsdp2, StrategiesSayWhetherParametersAreFreed) {
  for (const char* strategy : {"FULL_SHARD", "HYBRID_SHARD", "1", "4"}) {
    EXPECT_EQ(reshards(strategy), true) << strategy;
  }
  for (const char* strategy : {"SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2", "NO_SHARD", "2", "3", "5"}) {
    EXPECT_EQ(reshards(strategy), false) << strategy;
  }
}

// As in HF Accelerate, which goes through the file in its order.
TEST_F(ToFsdp2, TheLaterOfTwoKeysForOneSettingCounts) {
  const auto converted = [](const std::string& keys) {
    auto config = settings::parse_config("distributed_type: FSDP\nfsdp_config:\n" + keys,
                                         settings::ConfigFormat::kYaml, "test");
    EXPECT_TRUE(config.ok()) << config.status();
    std::vector<Notice> notices;
    EXPECT_TRUE(convert_to_fsdp2(*config, notices));
    return config->values["fsdp_config"]["fsdp_reshard_after_forward"];
  };
  const std::string strategy = "  fsdp_sharding_strategy: SHARD_GRAD_OP\n";
  const std::string reshard = "  fsdp_reshard_after_forward: true\n";
  EXPECT_EQ(converted(strategy + reshard), true);
  EXPECT_EQ(converted(reshard + strategy), false);
  EXPECT_EQ(converted("  sharding_strategy: FULL_SHARD\n  reshard_after_forward: false\n"), false);
  EXPECT_EQ(
      converted("  fsdp_reshard_after_forward: NO_SHARD\n  sharding_strategy: HYBRID_SHARD\n"),
      true);
}

TEST_F(ToFsdp2, LeavesWhatIsNoFsdp1AsItIs) {
  const std::string none = write("none.yaml", "distributed_type: MULTI_GPU\n");
  CommandResult result = run_command(kToFsdp2, {"--config_file", none, "--overwrite"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("No FSDP config found"));
  const std::string second =
      write("2.yaml",
            "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  offload_params: true\n");
  result = run_command(kToFsdp2, {"--config_file", second, "--overwrite"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("already specifies FSDP2"));
  EXPECT_THAT(read(second), AllOf(HasSubstr("fsdp_version: 2"), HasSubstr("offload_params: true")));
}

TEST_F(ToFsdp2, SaysWhatIsWrong) {
  const std::string in = write("a.yaml", kVersion1);
  const auto error = [](std::vector<std::string> words) {
    const CommandResult result = run_command(kToFsdp2, std::move(words));
    EXPECT_NE(result.exit_code, 0);
    return result.err;
  };
  EXPECT_THAT(error({"--config_file", folder_ + "/no.yaml", "--overwrite"}), HasSubstr("no.yaml"));
  EXPECT_THAT(error({"--config_file", in}), HasSubstr("--output_file PATH, or --overwrite"));
  EXPECT_THAT(error({"--config_file", in, "--output_file", in}), HasSubstr("is there already"));
  EXPECT_EQ(read(in), kVersion1);
  const CommandResult replaced =
      run_command(kToFsdp2, {"--config_file", in, "--output_file", in, "--overwrite"});
  EXPECT_EQ(replaced.exit_code, 0);
  EXPECT_THAT(read(in), AllOf(HasSubstr("fsdp_version: 2"), Not(HasSubstr("use_orig"))));
}

}  // namespace
}  // namespace accelerate::launcher::commands
