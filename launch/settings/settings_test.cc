#include "launch/settings/settings.h"

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "launch/settings/validate.h"

namespace accelerate::launcher::settings {

using process::EnvironmentOverlay;
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

const Machine kNoDevices = {.count_physical_cores = [] { return 8; }};

Machine devices(int count) {
  return {.device_kind = "gpu", .devices = count, .count_physical_cores = [] { return 8; }};
}

ConfigFile config_of(const std::string& text) {
  absl::StatusOr<ConfigFile> config = parse_config(text, ConfigFormat::kYaml, "/a/c.yaml");
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : ConfigFile();
}

Settings resolved(const TypedFlags& typed, const std::string& config = "",
                  const std::vector<std::string>& environment = {}) {
  const ConfigFile file = config.empty() ? ConfigFile() : config_of(config);
  absl::StatusOr<Settings> settings =
      Settings::resolve(typed, config.empty() ? nullptr : &file, environment);
  EXPECT_TRUE(settings.ok()) << settings.status();
  return settings.ok() ? *settings : Settings();
}

std::string error_of(const TypedFlags& typed, const Machine& machine,
                     const std::string& config = "") {
  Settings settings = resolved(typed, config);
  const absl::Status status = complete(settings, machine, Job());
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
  return std::string(status.message());
}

Settings completed(const TypedFlags& typed, const Machine& machine, const std::string& config = "",
                   const Job& job = Job()) {
  Settings settings = resolved(typed, config);
  const absl::Status status = complete(settings, machine, job);
  EXPECT_TRUE(status.ok()) << status;
  return settings;
}

constexpr char kFsdp[] =
    "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n  sharding_strategy: SHARD_GRAD_OP\n"
    "  fsdp_offload_params: true\n";

TEST(SettingsTest, AFlagWinsOverTheFileThatOverTheEnvironmentThatOverTheDefault) {
  const std::vector<std::string> environment = {"FSDP_SHARDING_STRATEGY=NO_SHARD",
                                                "FSDP_STATE_DICT_TYPE=FULL_STATE_DICT"};
  // The typed value is the default's.
  Settings settings = resolved({{"fsdp_offload_params", {"false"}}}, kFsdp, environment);
  EXPECT_EQ(settings.text("fsdp_offload_params"), "false");
  EXPECT_EQ(settings.provenance("fsdp_offload_params"), Provenance::kFlag);
  EXPECT_EQ(settings.text("fsdp_sharding_strategy"), "SHARD_GRAD_OP");
  EXPECT_EQ(settings.provenance("fsdp_sharding_strategy"), Provenance::kConfigFile);
  EXPECT_EQ(settings.provenance("fsdp_state_dict_type"), Provenance::kEnvironment);
  EXPECT_EQ(settings.provenance("fsdp_use_orig_params"), Provenance::kDefault);
  const std::string text = settings.to_text();
  EXPECT_THAT(text, HasSubstr("fsdp_offload_params = false  (flag: --fsdp_offload_params)\n"));
  EXPECT_THAT(text, HasSubstr("fsdp_sharding_strategy = SHARD_GRAD_OP  (config file: c.yaml:4)\n"));
  EXPECT_THAT(text, HasSubstr("(environment: FSDP_STATE_DICT_TYPE)\n"));
  EXPECT_THAT(text, HasSubstr("fsdp_use_orig_params = true  (default)\n"));
}

TEST(SettingsTest, TheFilesKindOfRunCountsUnlessOneIsTyped) {
  EXPECT_TRUE(resolved({}, kFsdp).flag("use_fsdp"));
  EXPECT_FALSE(resolved({{"cpu", {"true"}}}, kFsdp).flag("use_fsdp"));
  EXPECT_FALSE(
      resolved({}, "distributed_type: 'NO'\n", {"ACCELERATE_USE_FSDP=true"}).flag("use_fsdp"));
  EXPECT_TRUE(resolved({}, "", {"ACCELERATE_USE_FSDP=true"}).flag("use_fsdp"));
  EXPECT_TRUE(resolved({}, "distributed_type: MULTI_CPU\nnum_processes: 2\n").flag("cpu"));
}

// As HF Accelerate's template of an fp8 configuration has them.
TEST(SettingsTest, TakesChoicesOfFilesAndVariablesInAnyCase) {
  const Settings settings = completed({}, kNoDevices,
                                      "distributed_type: 'NO'\nmixed_precision: FP8\n"
                                      "fp8_config:\n  backend: TE\n  fp8_format: e4m3\n"
                                      "  amax_compute_algorithm: MAX\n");
  const EnvironmentOverlay variables = child_environment(settings, kNoDevices, {});
  EXPECT_THAT(variables, Contains(Pair("ACCELERATE_MIXED_PRECISION", "fp8")));
  EXPECT_THAT(variables, Contains(Pair("ACCELERATE_FP8_BACKEND", "te")));
  EXPECT_THAT(variables, Contains(Pair("ACCELERATE_FP8_FORMAT", "E4M3")));
  EXPECT_THAT(variables, Contains(Pair("ACCELERATE_FP8_AMAX_COMPUTE_ALGO", "max")));
  EXPECT_EQ(resolved({}, "", {"ACCELERATE_FP8_BACKEND=MSAMP"}).text("fp8_backend"), "msamp");
}

// What ranks get, wherever the mesh comes from.
TEST(SettingsTest, AMeshIsTheSameByFlagsFileAndVariables) {
  const std::vector<std::array<std::string, 2>> values = {
      {"dp_replicate_size", "2"},
      {"dp_shard_size", "3"},
      {"tp_size", "4"},
      {"cp_size", "5"},
      {"cp_backend", "torch"},
      {"cp_comm_strategy", "alltoall"},
      {"sp_size", "6"},
      {"sp_backend", "deepspeed"},
      {"sp_seq_length", "128"},
      {"sp_seq_length_is_variable", "False"},
      {"sp_attn_implementation", "flash_attention_2"},
      {"pp_size", "7"},
      {"pp_placement", "inside_dp_replicate"},
  };
  TypedFlags typed = {{"use_parallelism_config", {"true"}}};
  std::string config = "distributed_type: MULTI_GPU\nparallelism_config:\n";
  std::vector<std::string> environment = {"ACCELERATE_USE_PARALLELISM_CONFIG=true"};
  std::vector<std::pair<std::string, std::optional<std::string>>> expected = {
      {"ACCELERATE_USE_PARALLELISM_CONFIG", "true"}};
  for (const auto& [name, value] : values) {
    const std::string variable = absl::StrCat("PARALLELISM_CONFIG_", absl::AsciiStrToUpper(name));
    typed[absl::StrCat("parallelism_config_", name)] = {value};
    absl::StrAppend(&config, "  ", name, ": ", value, "\n");
    environment.push_back(absl::StrCat(variable, "=", value));
    expected.emplace_back(variable, value);
  }
  for (const Settings& settings :
       {resolved(typed), resolved({}, config), resolved({}, "", environment)}) {
    EXPECT_THAT(child_environment(settings, kNoDevices, {}), IsSupersetOf(expected));
  }
}

TEST(SettingsTest, SaysWhereABadValueIs) {
  const auto message = [](const TypedFlags& typed, std::vector<std::string> environment) {
    return std::string(Settings::resolve(typed, nullptr, environment).status().message());
  };
  EXPECT_EQ(message({{"num_processes", {"two"}}}, {}),
            "--num_processes: expected a whole number, not \"two\"");
  EXPECT_EQ(message({{"mixed_precision", {"FP16"}}}, {}),
            "--mixed_precision: expected one of no, fp16, bf16, fp8, not \"FP16\"");
  EXPECT_THAT(message({}, {"FSDP_OFFLOAD_PARAMS=maybe"}),
              HasSubstr("variable FSDP_OFFLOAD_PARAMS: expected true or false"));
  // An outer run's variables about its ranks do not concern this one.
  EXPECT_EQ(message({}, {"WORLD_SIZE=x", "MASTER_PORT=x", "OMP_NUM_THREADS=4,2"}), "");
}

TEST(SettingsTest, HidesCredentials) {
  EXPECT_THAT(resolved({}, "", {"AWS_SECRET_ACCESS_KEY=s3cret"}).to_text(),
              Not(HasSubstr("s3cret")));
}

TEST(CheckStatus, SaysWhereItIsAskedFor) {
  const auto message = [](const TypedFlags& typed, const std::string& config,
                          const std::vector<std::string>& environment) {
    return std::string(check_status(resolved(typed, config, environment)).message());
  };
  EXPECT_EQ(message({}, "", {}), "");
  EXPECT_EQ(message({}, kFsdp, {}), "");
  EXPECT_EQ(message({{"use_deepspeed", {"true"}}, {"zero_stage", {"3"}}}, "", {}), "");
  const std::string megatron =
      "distributed_type: MEGATRON_LM\nnum_processes: 2\nmegatron_lm_config:\n"
      "  megatron_lm_tp_degree: 2\n";
  EXPECT_EQ(message({}, megatron, {}),
            "c.yaml:1: distributed_type: MEGATRON_LM is not in this version; leave it out");
  EXPECT_EQ(message({{"cpu", {"true"}}}, megatron, {}),
            "c.yaml:4: megatron_lm_tp_degree: 2 is not in this version; leave it out");
  EXPECT_EQ(message({{"use_megatron_lm", {"true"}}}, "", {}),
            "--use_megatron_lm is not in this version; leave it out");
  EXPECT_EQ(message({}, "", {"ACCELERATE_DYNAMO_BACKEND=INDUCTOR"}),
            "ACCELERATE_DYNAMO_BACKEND=inductor is not in this version; leave it out");
  EXPECT_EQ(message({}, "", {"ACCELERATE_DYNAMO_BACKEND=NO", "ACCELERATE_USE_MEGATRON_LM=false"}),
            "");
  EXPECT_EQ(message({{"fsdp_version", {"1"}}, {"zero3_init_flag", {"false"}}}, "", {}), "");
  const std::string mesh = "distributed_type: MULTI_GPU\nparallelism_config:\n";
  EXPECT_EQ(message({}, mesh + "  tp_size: 2\n", {}), "");
  EXPECT_EQ(message({}, mesh + "  dp_shard_size: 2\n", {}), "");
  EXPECT_THAT(message({}, mesh + "  cp_size: 2\n", {}),
              HasSubstr("c.yaml:3: parallelism_config_cp_size: 2 is not"));
}

TEST(Complete, TakesOneRankADeviceElseOne) {
  EXPECT_EQ(completed({}, devices(4)).number("num_processes"), 4);
  EXPECT_TRUE(completed({}, devices(4)).flag("multi_gpu"));
  EXPECT_EQ(completed({}, kNoDevices).number("num_processes"), 1);
  EXPECT_EQ(completed({{"cpu", {"true"}}}, devices(4)).number("num_processes"), 1);
  EXPECT_EQ(completed({{"gpu_ids", {"1,3"}}}, devices(4)).number("num_processes"), 2);
  EXPECT_EQ(completed({{"simulate", {"2x4"}}}, devices(4)).number("num_processes"), 1);
}

TEST(Complete, RefusesWhatDoesNotGoTogether) {
  EXPECT_THAT(error_of({{"cpu", {"true"}}, {"multi_gpu", {"true"}}}, devices(2)),
              HasSubstr("--cpu and --multi_gpu exclude each other"));
  EXPECT_THAT(error_of({{"multi_gpu", {"true"}}, {"num_processes", {"1"}}}, devices(2)),
              HasSubstr("at least 2 ranks"));
  EXPECT_THAT(error_of({}, devices(2), "distributed_type: MULTI_GPU\nnum_processes: -1\n"),
              HasSubstr("give --num_processes"));
  EXPECT_THAT(error_of({}, devices(2), "distributed_type: MULTI_GPU\n"),
              HasSubstr("give --num_processes"));
  EXPECT_THAT(error_of({{"module", {"true"}}, {"no_python", {"true"}}}, kNoDevices),
              HasSubstr("--module and --no_python"));
  EXPECT_THAT(error_of({{"num_processes", {"3"}}, {"num_machines", {"2"}}}, kNoDevices),
              HasSubstr("3 ranks cannot be divided evenly over 2 machines"));
  for (const char* axis : {"cp", "sp"}) {
    EXPECT_THAT(error_of({{"use_parallelism_config", {"true"}},
                          {"use_fsdp", {"true"}},
                          {absl::StrCat("parallelism_config_", axis, "_size"), {"2"}}},
                         devices(2)),
                HasSubstr(absl::StrCat("--parallelism_config_", axis,
                                       "_size=2 needs --use_fsdp --fsdp_version 2")));
  }
  EXPECT_THAT(
      error_of({{"use_fsdp", {"true"}}, {"fsdp_sync_module_states", {"False"}}}, devices(2)),
      HasSubstr("fsdp_cpu_ram_efficient_loading needs fsdp_sync_module_states"));
  EXPECT_THAT(error_of({{"nnodes", {"2:4"}}}, kNoDevices), HasSubstr("--rdzv_backend c10d"));
  EXPECT_THAT(error_of({{"rdzv_backend", {"etcd"}}}, kNoDevices), HasSubstr("static, or c10d"));
  EXPECT_THAT(error_of({{"monitor_interval", {"0"}}}, kNoDevices), HasSubstr("above 0"));
  EXPECT_THAT(error_of({{"tpu", {"true"}}}, kNoDevices), HasSubstr("no TPU"));
  EXPECT_THAT(
      error_of({}, devices(4), "distributed_type: MULTI_GPU\ngpu_ids: '0'\nnum_processes: 2\n"),
      HasSubstr("c.yaml:2: gpu_ids: 0: 2 ranks need at least two devices"));
}

TEST(Complete, AMeshThatDividesNoSequencesNeedsNoFsdp) {
  for (const char* axis : {"dp_replicate", "dp_shard", "tp", "pp"}) {
    completed({{"use_parallelism_config", {"true"}},
               {absl::StrCat("parallelism_config_", axis, "_size"), {"2"}}},
              devices(2));
  }
  completed({{"use_parallelism_config", {"true"}},
             {"parallelism_config_dp_replicate_size", {"2"}},
             {"parallelism_config_tp_size", {"2"}}},
            devices(4));
  completed({{"use_parallelism_config", {"true"}},
             {"use_fsdp", {"true"}},
             {"fsdp_version", {"2"}},
             {"parallelism_config_dp_shard_size", {"2"}}},
            devices(2));
}

TEST(Complete, NamesOptionValueAndRangeOfABadNumber) {
  for (const char* value : {"0", "-3", "1025"}) {
    EXPECT_THAT(error_of({{"num_processes", {value}}}, kNoDevices),
                HasSubstr(absl::StrCat("--num_processes=", value,
                                       " is not a whole number from 1 to 1024")));
  }
  EXPECT_THAT(error_of({{"main_process_port", {"65536"}}}, kNoDevices), HasSubstr("0 to 65535"));
  EXPECT_THAT(error_of({{"simulate", {"1x1"}}, {"simulate_seed", {"-1"}}}, kNoDevices),
              HasSubstr("--simulate_seed=-1"));
}

TEST(Complete, KeepsSimulationsToThemselves) {
  EXPECT_THAT(error_of({{"simulate", {"1x2"}}, {"num_processes", {"2"}}}, kNoDevices),
              HasSubstr("--simulate=1x2 and --num_processes exclude each other"));
  EXPECT_THAT(error_of({{"num_processes", {"2"}}}, kNoDevices,
                       "distributed_type: MULTI_CPU\nsimulate: 1x2\n"),
              HasSubstr("c.yaml:2: simulate: 1x2 and --num_processes exclude each other"));
  for (const char* spec :
       {"2x4", "2x4:h100,nic=1", "tpu-v4:2x2x4", "c.json", "{\"num_nodes\": 2}"}) {
    completed({{"simulate", {spec}}}, kNoDevices);
  }
  for (const char* spec : {"2", "2x", "0x4", "2*4", "h100", "h100:", "2x4x", "2 x 4 y"}) {
    EXPECT_THAT(error_of({{"simulate", {spec}}}, kNoDevices), HasSubstr("names no cluster"))
        << spec;
  }
  EXPECT_THAT(error_of({{"simulate", {"1x2"}}, {"main_process_port", {"2"}}}, kNoDevices),
              HasSubstr("--main_process_port"));
  EXPECT_THAT(error_of({{"simulate_seed", {"1"}}}, kNoDevices), HasSubstr("--simulate"));
  for (const char* name : {"seeds", "no_detect"}) {
    EXPECT_THAT(error_of({{name, {"0:2"}}}, kNoDevices),
                HasSubstr(absl::StrCat("--", name, " has no meaning without --simulate")));
  }
  for (const char* text : {"x", "5", "", "1:", ":2", "1:2:3", "-1:2", "0:18446744073709551616"}) {
    EXPECT_THAT(error_of({{"simulate", {"1x1"}}, {"seeds", {text}}}, kNoDevices),
                HasSubstr(absl::StrCat("--seeds=", text, ": expected FIRST:END as in 0:50")));
  }
  for (const char* text : {"5:2", "3:3"}) {
    EXPECT_THAT(error_of({{"simulate", {"1x1"}}, {"seeds", {text}}}, kNoDevices),
                HasSubstr(absl::StrCat("--seeds=", text, ": there is no seed")));
  }
  EXPECT_THAT(
      error_of({{"simulate", {"1x1"}}, {"seeds", {"0:2"}}, {"simulate_seed", {"1"}}}, kNoDevices),
      HasSubstr("--simulate_seed and --seeds exclude each other"));
  for (const char* text : {"x", "races,", "race"}) {
    EXPECT_THAT(error_of({{"simulate", {"1x1"}}, {"no_detect", {text}}}, kNoDevices),
                HasSubstr("expected races, leaks or drift"));
  }
  EXPECT_THAT(error_of({{"report", {"out"}}}, kNoDevices), HasSubstr("--report has no meaning"));
  EXPECT_THAT(error_of({{"simulate_numerics", {"shapes"}}}, kNoDevices),
              HasSubstr("--simulate_numerics has no meaning"));
  EXPECT_THAT(error_of({{"simulate_unknown_values", {"nan"}}}, kNoDevices),
              HasSubstr("--simulate_unknown_values has no meaning"));
  EXPECT_THAT(error_of({{"simulate_fold", {"true"}}}, kNoDevices),
              HasSubstr("--simulate_fold has no meaning"));
}

TEST(Complete, ListensToTheScheduler) {
  const Job job = {.kind = JobKind::kSageMaker,
                   .nodes = 2,
                   .devices_per_node = 8,
                   .node_rank = 1,
                   .first_host = "algo-1",
                   .port = 29500};
  Job job_of_file = job;
  job_of_file.hosts_file = "/r.json";
  EXPECT_EQ(completed({}, devices(8), "", job).describe("machine_rank"), "SM_CURRENT_HOST=1");
  EXPECT_EQ(completed({}, devices(8), "", job_of_file).describe("machine_rank"), "/r.json=1");
  const Settings settings = completed({}, devices(8), "", job);
  EXPECT_EQ(settings.number("num_processes"), 16);
  EXPECT_EQ(settings.number("machine_rank"), 1);
  EXPECT_EQ(settings.text("main_process_ip"), "algo-1");
  EXPECT_EQ(settings.provenance("num_machines"), Provenance::kEnvironment);
  EXPECT_EQ(completed({{"num_machines", {"1"}}}, devices(8), "", job).number("num_processes"), 8);
}

TEST(ChildEnvironment, SaysWhatIsSet) {
  Settings settings = completed({{"use_fsdp", {"true"}},
                                 {"fsdp_transformer_layer_cls_to_wrap", {"Block"}},
                                 {"num_cpu_threads_per_process", {"3"}},
                                 {"gpu_ids", {"0,1"}},
                                 {"debug", {"true"}}},
                                devices(2));
  Machine npu = devices(2);
  npu.device_kind = "npu";
  const EnvironmentOverlay variables = child_environment(settings, npu, {});
  EXPECT_THAT(variables, Contains(Pair("FSDP_TRANSFORMER_CLS_TO_WRAP", "Block")));
  EXPECT_THAT(variables, Contains(Pair("FSDP_VERSION", "1")));
  EXPECT_THAT(variables, Contains(Pair("OMP_NUM_THREADS", "3")));
  EXPECT_THAT(variables, Contains(Pair("ASCEND_RT_VISIBLE_DEVICES", "0,1")));
  EXPECT_THAT(variables, Contains(Pair("ACCELERATE_DEBUG_MODE", "true")));
  EXPECT_THAT(variables, Not(Contains(Key("FSDP_STATE_DICT_TYPE"))));
  EXPECT_THAT(variables, Contains(Pair("ACCELERATE_SIMULATE", std::nullopt)));
  EXPECT_THAT(variables, Contains(Pair("ACCELERATE_SIMULATE_NUMERICS", std::nullopt)));
}

TEST(ChildEnvironment, ChoosesDevicesByTheVariableOfTheirMaker) {
  const Settings settings = completed({{"gpu_ids", {"0,1"}}}, devices(2));
  Machine machine = devices(2);
  EXPECT_THAT(child_environment(settings, machine, {}),
              Contains(Pair("CUDA_VISIBLE_DEVICES", "0,1")));
  machine.devices_are_amd = true;
  const EnvironmentOverlay variables = child_environment(settings, machine, {});
  EXPECT_THAT(variables, Contains(Pair("HIP_VISIBLE_DEVICES", "0,1")));
  EXPECT_THAT(variables, Not(Contains(Key("CUDA_VISIBLE_DEVICES"))));
}

TEST(ChildEnvironment, TellsNcclOfDevicesThatDoNotReachOneAnother) {
  Machine machine = devices(2);
  machine.has_peer_access = false;
  const auto variables = [&](const TypedFlags& typed, const std::vector<std::string>& outside) {
    return child_environment(completed(typed, machine), machine, outside);
  };
  const TypedFlags two = {{"num_processes", {"2"}}};
  const auto p2p = Contains(Pair("NCCL_P2P_DISABLE", "1"));
  const auto ib = Contains(Pair("NCCL_IB_DISABLE", "1"));
  EXPECT_THAT(variables(two, {}), AllOf(p2p, ib));
  // The user's own value stays, whatever it is, and says nothing of the other variable.
  for (const char* value : {"0", "1", ""}) {
    EXPECT_THAT(variables(two, {absl::StrCat("NCCL_P2P_DISABLE=", value)}),
                AllOf(Not(Contains(Key("NCCL_P2P_DISABLE"))), ib));
    EXPECT_THAT(variables(two, {absl::StrCat("NCCL_IB_DISABLE=", value)}),
                AllOf(p2p, Not(Contains(Key("NCCL_IB_DISABLE")))));
  }
  for (const TypedFlags& other : {TypedFlags{{"num_processes", {"1"}}},
                                  TypedFlags{{"num_processes", {"2"}}, {"cpu", {"true"}}}}) {
    EXPECT_THAT(variables(other, {}), Not(Contains(Key("NCCL_P2P_DISABLE"))));
  }
  machine.has_peer_access = true;
  EXPECT_THAT(variables(two, {}), Not(Contains(Key("NCCL_P2P_DISABLE"))));
}

TEST(ChildEnvironment, HasTheMicroBatchesOfAStepWithoutAnyEngine) {
  const auto variables = [](const TypedFlags& typed, const std::string& config) {
    return child_environment(completed(typed, kNoDevices, config), kNoDevices, {});
  };
  const char* name = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS";
  EXPECT_THAT(variables({{"gradient_accumulation_steps", {"4"}}}, ""), Contains(Pair(name, "4")));
  EXPECT_THAT(variables({},
                        "distributed_type: 'NO'\nnum_processes: 1\ndeepspeed_config:\n"
                        "  gradient_accumulation_steps: 3\n"),
              Contains(Pair(name, "3")));
  EXPECT_THAT(variables({}, ""), Not(Contains(Key(name))));
}

TEST(ChildEnvironment, TurnsOffWhatAFileTurnsOff) {
  const std::vector<std::string> outside = {"ACCELERATE_DEBUG_MODE=true", "ACCELERATE_USE_CPU=1",
                                            "ACCELERATE_USE_FSDP=true"};
  const Settings settings = completed(
      {}, devices(2), "distributed_type: MULTI_GPU\nnum_processes: 2\ndebug: false\nuse_cpu: no\n");
  const EnvironmentOverlay variables = child_environment(settings, devices(2), outside);
  for (const char* name : {"ACCELERATE_DEBUG_MODE", "ACCELERATE_USE_CPU", "ACCELERATE_USE_FSDP"}) {
    EXPECT_THAT(variables, Contains(Pair(name, std::nullopt)));
  }
  EXPECT_THAT(child_environment(settings, devices(2), {}),
              Not(Contains(Key("ACCELERATE_USE_FSDP"))));
}

TEST(ChildEnvironment, SharesCoresBetweenCpuRanks) {
  const auto threads = [](const TypedFlags& typed, std::vector<std::string> environment) {
    const Settings settings = completed(typed, kNoDevices);
    const EnvironmentOverlay variables = child_environment(settings, kNoDevices, environment);
    const auto found = variables.find("OMP_NUM_THREADS");
    return found == variables.end() ? "" : *found->second;
  };
  const TypedFlags two = {{"num_processes", {"2"}}};
  const TypedFlags two_cpu = {{"num_processes", {"2"}}, {"cpu", {"true"}}};
  EXPECT_EQ(threads(two, {}), "1");
  EXPECT_EQ(threads(two, {"OMP_NUM_THREADS=8"}), "");
  EXPECT_EQ(threads(two_cpu, {}), "4");
  EXPECT_EQ(threads(two_cpu, {"MPI_LOCALNRANKS=8"}), "1");
  EXPECT_EQ(threads({}, {}), "");
}

}  // namespace
}  // namespace accelerate::launcher::settings
