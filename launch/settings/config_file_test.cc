#include "launch/settings/config_file.h"
#include "accelerate/platform/host_files.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace accelerate::launcher::settings {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

ConfigFile parsed(const std::string& text, ConfigFormat format = ConfigFormat::kYaml) {
  absl::StatusOr<ConfigFile> config = parse_config(text, format, "c.yaml");
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : ConfigFile();
}

std::string error_of(const std::string& text, ConfigFormat format = ConfigFormat::kYaml) {
  const absl::StatusOr<ConfigFile> config = parse_config(text, format, "c.yaml");
  EXPECT_TRUE(absl::IsInvalidArgument(config.status())) << config.status();
  const std::string message(config.status().message());
  EXPECT_THAT(message, Not(HasSubstr("\n")));
  EXPECT_THAT(message, HasSubstr("c.yaml"));
  return message;
}

std::string content(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(ConfigFileTest, WritesWhatItReadWithDefaultsAndSortedKeys) {
  EXPECT_EQ(config_to_yaml(parsed("distributed_type: 'NO'\n")),
            "compute_environment: LOCAL_MACHINE\n"
            "debug: false\n"
            "distributed_type: 'NO'\n"
            "downcast_bf16: false\n"
            "enable_cpu_affinity: false\n"
            "machine_rank: 0\n"
            "main_training_function: main\n"
            "num_machines: 1\n"
            "num_processes: 1\n"
            "rdzv_backend: static\n"
            "same_network: false\n"
            "tpu_use_cluster: false\n"
            "tpu_use_sudo: false\n"
            "use_cpu: false\n");
}

TEST(ConfigFileTest, ReadsJsonAndSectionsWithAndWithoutPrefixes) {
  const ConfigFile config = parsed(
      R"({"distributed_type": "FSDP", "num_processes": 2,
          "fsdp_config": {"sharding_strategy": "FULL_SHARD", "fsdp_version": 2}})",
      ConfigFormat::kJson);
  EXPECT_EQ(config.values["fsdp_config"]["sharding_strategy"], "FULL_SHARD");
  EXPECT_EQ(config.values["num_processes"], 2);
}

TEST(ConfigFileTest, ConvertsWhatOlderReleasesWrote) {
  EXPECT_EQ(parsed("distributed_type: MULTI_GPU\nfp16: true\n").values["mixed_precision"], "fp16");
  EXPECT_FALSE(parsed("distributed_type: MULTI_GPU\nfp16: false\n").values.contains("fp16"));
  EXPECT_EQ(parsed("distributed_type: TPU\n").values["distributed_type"], "XLA");
  EXPECT_EQ(parsed("distributed_type: 'NO'\ndynamo_backend: INDUCTOR\n")
                .values["dynamo_config"]["dynamo_backend"],
            "INDUCTOR");
  EXPECT_TRUE(
      parsed("distributed_type: 'NO'\ndynamo_backend: 'NO'\n").values["dynamo_config"].empty());
  EXPECT_FALSE(
      parsed("distributed_type: 'NO'\nipex_config: {ipex: true}\n").values.contains("ipex_config"));
  EXPECT_EQ(parsed("distributed_type: 'NO'\nfp8_config: {amax_history_length: 7}\n")
                .values["fp8_config"]["amax_history_length"],
            7);
  EXPECT_FALSE(parsed("distributed_type: MULTI_GPU\n").values.contains("num_processes"));
  EXPECT_EQ(all_fields(parsed("distributed_type: MULTI_GPU\n"))["num_processes"], -1);
}

TEST(ConfigFileTest, RefusesJsonThatCannotBeMeant) {
  EXPECT_THAT(
      error_of(R"({"distributed_type": "NO", "num_processes": 1e999})", ConfigFormat::kJson),
      HasSubstr("1e999"));
}

// As PyYAML and Python's json have it; whoever wrote the key twice is told.
TEST(ConfigFileTest, TheLastOfTwoEqualKeysCounts) {
  const ConfigFile json = parsed(
      R"({"debug": true, "distributed_type": "FSDP", "fsdp_config": {"version": 1},
          "debug": false})",
      ConfigFormat::kJson);
  EXPECT_EQ(json.values["debug"], false);
  EXPECT_THAT(json.notes, ElementsAre("c.yaml:2: the key debug occurs twice; the last one counts"));
  const ConfigFile yaml = parsed(
      "debug: true\ndistributed_type: FSDP\nfsdp_config: {version: 1, version: 2}\ndebug: no\n");
  EXPECT_EQ(yaml.values["debug"], false);
  EXPECT_EQ(yaml.values["fsdp_config"]["version"], 2);
  EXPECT_EQ(yaml.lines.at("debug"), 4);
  EXPECT_THAT(yaml.notes, ElementsAre("c.yaml:3: the key version occurs twice; the last one counts",
                                      "c.yaml:4: the key debug occurs twice; the last one counts"));
}

TEST(ConfigFileTest, MergesMapsAsYaml11Does) {
  const ConfigFile config = parsed(
      "distributed_type: FSDP\nmpirun_config: &none {}\ndynamo_config:\n  <<: *none\n"
      "fp8_config: &fp8 {margin: 1, interval: 2}\nfsdp_config:\n  version: 1\n"
      "  <<: [{version: 2, offload_params: true}, {offload_params: no, use_orig_params: no}]\n");
  EXPECT_EQ(config.values["fsdp_config"],
            nlohmann::ordered_json::parse(
                R"({"offload_params": true, "use_orig_params": false, "version": 1})"));
  EXPECT_TRUE(config.notes.empty());
  // An alias is what it stands for.
  EXPECT_EQ(parsed("distributed_type: &a FSDP\nmain_process_ip: *a\n").values["main_process_ip"],
            "FSDP");
  EXPECT_THAT(error_of("distributed_type: 'NO'\nfp8_config:\n  <<: 3\n"),
              HasSubstr("c.yaml:3:7: << merges a map or a list of maps"));
  EXPECT_THAT(error_of("distributed_type: 'NO'\nfp8_config:\n  '<<': {margin: 1}\n"),
              HasSubstr("unknown keys: 'fp8_config.<<' in line 3"));
  EXPECT_THAT(error_of("distributed_type: 'NO'\nfp8_config: &a\n  <<: *a\n"),
              HasSubstr("too deep"));
}

TEST(ConfigFileTest, ReadsPlainWordsAsYaml11Does) {
  const auto value = [](const std::string& word) {
    return parsed("distributed_type: 'NO'\ntpu_name: " + word + "\n").values["tpu_name"];
  };
  using Json = nlohmann::ordered_json;
  const std::pair<const char*, Json> words[] = {{"yes", true},
                                                {"Off", false},
                                                {"on", true},
                                                {"y", "y"},
                                                {"tRue", "tRue"},
                                                {"~", nullptr},
                                                {"Null", nullptr},
                                                {"", nullptr},
                                                {"nULL", "nULL"},
                                                {"010", 8},
                                                {"0o10", "0o10"},
                                                {"08", "08"},
                                                {"1_000", 1000},
                                                {"_1", "_1"},
                                                {"0x1F", 31},
                                                {"-0b11", -3},
                                                {"+12", 12},
                                                {"1:30", 90},
                                                {"1:60", "1:60"},
                                                {"1:30.5", 90.5},
                                                {"-0:30.", -30.0},
                                                {"1:60.5", "1:60.5"},
                                                {"00:30", "00:30"},
                                                {"1.5", 1.5},
                                                {"1_0.2_5", 10.25},
                                                {".5", 0.5},
                                                {"+.5", "+.5"},
                                                {"1.", 1.0},
                                                {"1e5", "1e5"},
                                                {"1.0e5", "1.0e5"},
                                                {"1.0e+5", 1e5},
                                                {".inf", ".inf"},
                                                {"'7'", "7"},
                                                {"\"no\"", "no"},
                                                {"!!str 7", "7"},
                                                {"!!int '7'", 7},
                                                {"!!bool 'no'", false},
                                                {"!!float 7", 7.0},
                                                {"!!python/bool on", true},
                                                {"2026-11-29", "2026-11-29"},
                                                {"(true, no)", "(true, no)"},
                                                {"!!python/none ''", nullptr}};
  for (const auto& [word, expected] : words) EXPECT_EQ(value(word), expected) << word;
  for (const char* bad :
       {"!!int x", "!!bool 7", "!!python/object:os.system x", "!mine 7", "!!set {a}", "!!null 7"}) {
    EXPECT_THAT(error_of(absl::StrCat("distributed_type: 'NO'\ntpu_name: ", bad, "\n")),
                HasSubstr("c.yaml:2:"))
        << bad;
  }
  EXPECT_THAT(error_of("distributed_type: 'NO'\n---\nuse_cpu: true\n"),
              HasSubstr("a second document begins"));
}

TEST(ConfigFileTest, RefusesTwoSpellingsOfAKey) {
  EXPECT_EQ(error_of("distributed_type: FSDP\nfsdp_config:\n  version: 1\n  fsdp_version: 2\n"),
            "c.yaml:4: fsdp_config.fsdp_version: is the same as version; keep one");
}

TEST(ConfigFileTest, TakesAnUnquotedNoForTheWord) {
  EXPECT_EQ(parsed("distributed_type: NO\n").values["distributed_type"], "NO");
  EXPECT_EQ(parsed("distributed_type: NO\nmixed_precision: no\n").values["mixed_precision"], "no");
}

TEST(ConfigFileTest, NamesUnknownKeysWithLineAndNearestMatch) {
  const std::string message = error_of(
      "distributed_type: FSDP\nnum_procesess: 2\nzebra: 1\n"
      "fsdp_config:\n  fsdp_shardin_strategy: FULL_SHARD\n");
  EXPECT_THAT(message, HasSubstr("'fsdp_config.fsdp_shardin_strategy' in line 5 (did you mean "
                                 "fsdp_sharding_strategy?), 'num_procesess' in line 2 (did you "
                                 "mean num_processes?), 'zebra' in line 3;"));
  EXPECT_THAT(error_of("distributed_type: 'NO'\ncompute_environment: AMAZON_SAGEMAKER\n"
                       "ec2_instance_type: x\niam_role_name: r\nnum_processes: 1\n"),
              HasSubstr("'num_processes' in line 5"));
  EXPECT_THAT(error_of("distributed_type: 'NO'\na/b~c: 1\nfsdp_config:\n  d~1/e~0: 1\n"),
              HasSubstr("unknown keys: 'a/b~c' in line 2, 'fsdp_config.d~1/e~0' in line 4;"));
}

TEST(ConfigFileTest, NamesFileLineAndColumnOfBadYaml) {
  EXPECT_THAT(error_of("a: [unclosed\n"), HasSubstr("c.yaml:2:1: "));
  EXPECT_THAT(error_of("? [a]\n: 1\n"), HasSubstr("c.yaml:1:3: a key is not a plain word"));
  EXPECT_THAT(error_of("{\"a\": \n, 1}", ConfigFormat::kJson),
              HasSubstr("c.yaml: it is not JSON: parse error at line 2"));
}

TEST(ConfigFileTest, RefusesWhatMakesNoSense) {
  EXPECT_THAT(error_of(""), HasSubstr("is empty"));
  EXPECT_THAT(error_of("- a\n"), HasSubstr("has no keys"));
  EXPECT_THAT(error_of("num_processes: 1\n"), HasSubstr("distributed_type"));
  EXPECT_THAT(error_of("distributed_type: MULTIGPU\n"),
              HasSubstr("c.yaml:1: distributed_type: expected one of NO, MULTI_CPU"));
  EXPECT_THAT(error_of("distributed_type: MULTIGPU\n"), HasSubstr("did you mean MULTI_GPU?"));
  EXPECT_THAT(error_of("distributed_type: 'NO'\nmixed_precision: fp99\n"),
              HasSubstr("c.yaml:2: mixed_precision: expected one of no, fp16, bf16, fp8"));
  EXPECT_THAT(error_of("distributed_type: 'NO'\nnum_processes: two\n"),
              HasSubstr("expected a whole number, not \"two\""));
  EXPECT_THAT(error_of("distributed_type: 'NO'\nnum_processes: [1]\n"), HasSubstr("one value"));
  EXPECT_THAT(error_of("distributed_type: 'NO'\nuse_cpu: maybe\n"), HasSubstr("true or false"));
  EXPECT_THAT(error_of("distributed_type: 'NO'\nfsdp_config: x\n"), HasSubstr("keys and values"));
  EXPECT_THAT(error_of("distributed_type: 'NO'\ncompute_environment: AMAZON_SAGEMAKER\n"),
              HasSubstr("needs ec2_instance_type"));
}

TEST(ConfigFileTest, KnowsSageMaker) {
  const ConfigFile config = parsed(
      "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: DATA_PARALLEL\n"
      "ec2_instance_type: ml.p3\niam_role_name: r\n");
  EXPECT_TRUE(config.is_sagemaker());
  EXPECT_EQ(config_to_yaml(config),
            "base_job_name: accelerate-sagemaker-1\n"
            "compute_environment: AMAZON_SAGEMAKER\n"
            "debug: false\n"
            "distributed_type: DATA_PARALLEL\n"
            "ec2_instance_type: ml.p3\n"
            "enable_cpu_affinity: false\n"
            "gpu_ids: all\n"
            "iam_role_name: r\n"
            "num_machines: 1\n"
            "py_version: py38\n"
            "pytorch_version: 1.10.2\n"
            "region: us-east-1\n"
            "transformers_version: 4.17.0\n"
            "use_cpu: false\n");
}

TEST(ConfigFileTest, WrittenTextsComeBack) {
  ConfigFile config = parsed("distributed_type: 'NO'\n");
  config.values["gpu_ids"] = "0";
  config.values["main_process_ip"] = "::1";
  config.values["command_file"] = "it's: a #file";
  config.values["commands"] = {"echo hi", "- x", "", "a\tb", "yes"};
  config.values["tpu_name"] = "0x10";
  config.values["rdzv_backend"] = "1e5";
  config.values["tpu_zone"] = "*star";
  const std::string yaml = config_to_yaml(config);
  EXPECT_THAT(yaml, HasSubstr("gpu_ids: '0'\n"));
  EXPECT_THAT(yaml, HasSubstr("commands:\n- echo hi\n- '- x'\n- ''\n"));
  const ConfigFile again = parsed(yaml);
  EXPECT_EQ(all_fields(again), all_fields(config)) << yaml;
  EXPECT_EQ(all_fields(parsed(config_to_json(config), ConfigFormat::kJson)), all_fields(config));
}

TEST(DefaultConfig, HasAFolderOfItsOwn) {
  EXPECT_EQ(default_config_path({"HF_HOME=/h", "XDG_CONFIG_HOME=/x", "HOME=/u"}),
            "/h/accelerate-cpp/default_config.yaml");
  EXPECT_EQ(default_config_path({"XDG_CONFIG_HOME=/x", "HOME=/u"}),
            "/x/accelerate-cpp/default_config.yaml");
  EXPECT_EQ(default_config_path({"HOME=/u"}), "/u/.config/accelerate-cpp/default_config.yaml");
}

TEST(DefaultConfig, MayBeJson) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path("accelerate-cpp"));
  std::ofstream(folder.path("accelerate-cpp/default_config.json")) << "{}";
  for (const auto& path : {&default_config_path, &found_default_config}) {
    EXPECT_THAT(path({"HF_HOME=" + folder.path()}),
                testing::EndsWith("/accelerate-cpp/default_config.json"));
  }
}

TEST(DefaultConfig, OfThePeerIsReadWhereThereIsNoOther) {
  const TemporaryFolder folder;
  const std::string home = "HOME=" + folder.path();
  const auto write = [&](const std::string& where) {
    const std::filesystem::path path = folder.path(where);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << "{}";
    return path.string();
  };
  const std::string own = folder.path(".config/accelerate-cpp/default_config.yaml");
  EXPECT_EQ(found_default_config({home}), own);
  const std::string peers = write(".cache/huggingface/accelerate/default_config.yaml");
  EXPECT_EQ(found_default_config({home}), peers);
  const std::string cached = write("cache/huggingface/accelerate/default_config.json");
  EXPECT_EQ(found_default_config({home, "XDG_CACHE_HOME=" + folder.path("cache")}), cached);
  const std::string home_of_both = write("hf/accelerate/default_config.yaml");
  EXPECT_EQ(found_default_config({home, "HF_HOME=" + folder.path("hf")}), home_of_both);
  write(".config/accelerate-cpp/default_config.yaml");
  EXPECT_EQ(found_default_config({home}), own);
}

TEST(LoadConfigFile, SaysWhatToDoWithoutAFile) {
  const absl::StatusOr<ConfigFile> config = load_config_file("/nowhere/x.yaml");
  EXPECT_TRUE(absl::IsNotFound(config.status()));
  EXPECT_THAT(std::string(config.status().message()), HasSubstr("accelerate config"));
}

TEST(BasicConfig, NamesKindsThatLaunchReads) {
  for (const char* kind : {"gpu", "xpu", "npu", "mlu", "sdaa", "musa", "hpu", "neuron", "tpu"}) {
    const absl::StatusOr<ConfigFile> config =
        basic_config("no", {.device_kind = kind, .devices = 2});
    ASSERT_TRUE(config.ok()) << config.status();
    const absl::StatusOr<ConfigFile> read =
        parse_config(config_to_yaml(*config), ConfigFormat::kYaml, "c.yaml");
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->values["distributed_type"] == "XLA", kind == std::string("tpu")) << kind;
  }
}

TEST(WriteBasicConfig, KnowsTheMachineAndLeavesFilesAlone) {
  const TemporaryFolder folder;
  const std::string path = folder.path("a/b/default_config.yaml");
  ASSERT_TRUE(write_basic_config("BF16", path, {.device_kind = "gpu", .devices = 2}).value());
  EXPECT_THAT(content(path), HasSubstr("distributed_type: MULTI_GPU\n"));
  EXPECT_THAT(content(path), HasSubstr("mixed_precision: bf16\n"));
  EXPECT_THAT(content(path), HasSubstr("num_processes: 2\n"));
  EXPECT_THAT(content(path), HasSubstr("use_cpu: false\n"));
  EXPECT_TRUE(load_config_file(path).ok());
  EXPECT_FALSE(write_basic_config("no", path, {}).value());
  EXPECT_THAT(content(path), HasSubstr("mixed_precision: bf16\n"));
  ASSERT_TRUE(write_basic_config("no", folder.path("c.json"), {}).value());
  EXPECT_THAT(content(folder.path("c.json")), HasSubstr("\"use_cpu\": true"));
  EXPECT_TRUE(load_config_file(folder.path("c.json")).ok());
  EXPECT_THAT(std::string(write_basic_config("tf32", folder.path("d"), {}).status().message()),
              HasSubstr("no, fp16, bf16, fp8"));
  EXPECT_FALSE(std::filesystem::exists(folder.path("d")));
}

}  // namespace
}  // namespace accelerate::launcher::settings
