#include "launch/settings/settings.h"

#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "accelerate/base/mesh_axis.h"
#include "accelerate/base/rank_layout.h"
#include "launch/settings/endpoint.h"
#include "launch/settings/schema.h"
#include "launch/settings/validate.h"

namespace accelerate::launcher::settings {

using process::EnvironmentOverlay;
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
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
  const std::string text = settings.to_text(/*all=*/true);
  EXPECT_THAT(text, HasSubstr("fsdp_offload_params = false  (flag: --fsdp_offload_params)\n"));
  EXPECT_THAT(text, HasSubstr("fsdp_sharding_strategy = SHARD_GRAD_OP  (config file: c.yaml:4)\n"));
  EXPECT_THAT(text, HasSubstr("(environment: FSDP_STATE_DICT_TYPE)\n"));
  EXPECT_THAT(text, HasSubstr("fsdp_use_orig_params = true  (default)\n"));
  const std::string given = settings.to_text(/*all=*/false);
  EXPECT_THAT(given, HasSubstr("fsdp_offload_params = false  (flag: --fsdp_offload_params)\n"));
  EXPECT_THAT(given, Not(HasSubstr("fsdp_use_orig_params")));
  EXPECT_THAT(given, HasSubstr(" others have their defaults; --print_config=all shows them\n"));
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
  const Settings typed = resolved({{"mixed_precision", {"BF16"}}, {"fp8_format", {"hybrid"}}});
  EXPECT_EQ(typed.text("mixed_precision"), "bf16");
  EXPECT_EQ(typed.text("fp8_format"), "HYBRID");
}

// Ranks get three truth values, however a list of them is written.
TEST(SettingsTest, ReadsThreeBooleansFromEveryFormOfAList) {
  const auto of_text = [](const std::string& list) {
    return completed({}, kNoDevices,
                     "distributed_type: 'NO'\nmixed_precision: fp8\nfp8_config:\n"
                     "  override_linear_precision: " +
                         list + "\n");
  };
  std::vector<Settings> all;
  for (const char* list : {"(true, false, true)", "(True, False, True)", "[true, false, true]",
                           "true,false,true", "!!python/tuple [yes, no, on]", "(1, 0, y,)",
                           "'[on, off, T]'", "\n  - true\n  - no\n  - 1"}) {
    all.push_back(of_text(list));
  }
  for (const char* text : {"true,false,true", "(true,false,true)", "[1, 0, 1]"}) {
    all.push_back(completed(
        {{"mixed_precision", {"fp8"}}, {"fp8_override_linear_precision", {text}}}, kNoDevices));
  }
  for (const Settings& settings : all) {
    const EnvironmentOverlay variables = child_environment(settings, kNoDevices, {});
    const std::string given = settings.describe("fp8_override_linear_precision");
    EXPECT_THAT(variables, Contains(Pair("ACCELERATE_FP8_OVERRIDE_FPROP", "True"))) << given;
    EXPECT_THAT(variables, Contains(Pair("ACCELERATE_FP8_OVERRIDE_DGRAD", "False"))) << given;
    EXPECT_THAT(variables, Contains(Pair("ACCELERATE_FP8_OVERRIDE_WGRAD", "True"))) << given;
  }
  for (const char* bad : {"(true, false)", "(true, false, true", "true, false, true)", "()", "",
                          "(true, false, true, true)", "(true, , true)", "[true, false, true)"}) {
    EXPECT_FALSE(parse_bools(bad).ok()) << bad;
  }
}

// The variables of ranks are those of the numbers and words that YAML 1.1 reads.
TEST(SettingsTest, ValuesOfAYamlFileReachTheRanks) {
  const Settings settings = completed(
      {}, kNoDevices,
      "distributed_type: FSDP\nnum_processes: 0b10\nmain_process_port: 29_501\n"
      "debug: On\nmixed_precision: BF16\ngpu_ids: 010\n"
      "fsdp_config:\n  <<: &usual {fsdp_version: 0x2, fsdp_offload_params: off}\n"
      "  fsdp_offload_params: yes\n  fsdp_min_num_params: 1_000_000\n  fsdp_min_num_params: 0x10\n"
      "  fsdp_state_dict_type: ~\n  fsdp_auto_wrap_policy:\n");
  EXPECT_THAT(
      settings.notes(),
      testing::ElementsAre(HasSubstr("c.yaml:11: the key fsdp_min_num_params occurs twice")));
  EXPECT_EQ(settings.number("num_processes"), 2);
  EXPECT_EQ(settings.number("main_process_port"), 29501);
  const EnvironmentOverlay variables = child_environment(settings, kNoDevices, {});
  for (const auto& [name, value] :
       std::map<std::string, std::string>{{"ACCELERATE_DEBUG_MODE", "true"},
                                          {"ACCELERATE_MIXED_PRECISION", "bf16"},
                                          {"CUDA_VISIBLE_DEVICES", "8"},
                                          {"FSDP_VERSION", "2"},
                                          {"FSDP_OFFLOAD_PARAMS", "true"},
                                          {"FSDP_MIN_NUM_PARAMS", "16"},
                                          {"FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "false"}}) {
    EXPECT_THAT(variables, Contains(Pair(name, value)));
  }
  EXPECT_THAT(variables, Not(Contains(Key("FSDP_STATE_DICT_TYPE"))));
  EXPECT_THAT(variables, Not(Contains(Key("FSDP_AUTO_WRAP_POLICY"))));
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
      {"pp_schedule", "interleaved"},
      {"pp_stages_per_rank", "2"},
      {"pp_split_points", "blocks.1,blocks.2"},
      {"pp_micro_batches", "14"},
      {"ep_size", "3"},
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
  EXPECT_EQ(message({{"mixed_precision", {"FP17"}}}, {}),
            "--mixed_precision: expected one of no, fp16, bf16, fp8, not \"FP17\"");
  EXPECT_THAT(message({}, {"FSDP_OFFLOAD_PARAMS=maybe"}),
              HasSubstr("variable FSDP_OFFLOAD_PARAMS: expected true or false"));
  // An outer run's variables about its ranks do not concern this one.
  EXPECT_EQ(message({}, {"WORLD_SIZE=x", "MASTER_PORT=x", "OMP_NUM_THREADS=4,2"}), "");
}

TEST(SettingsTest, HidesCredentials) {
  for (const bool all : {true, false}) {
    const std::string text =
        resolved({}, "", {"AWS_ACCESS_KEY_ID=s3cret", "AWS_SECRET_ACCESS_KEY=s3cret"}).to_text(all);
    EXPECT_THAT(text, Not(HasSubstr("s3cret")));
    EXPECT_THAT(text, HasSubstr("\naws_access_key_id = (hidden)  (environment: AWS_ACCESS_KEY_ID)\n"
                                "aws_secret_access_key = (hidden)  (environment: "
                                "AWS_SECRET_ACCESS_KEY)\n"));
  }
}

TEST(SettingsTest, TakesKeysOfOlderFiles) {
  EXPECT_EQ(resolved({}, "distributed_type: 'NO'\nfp8_config: {optimization_level: O1}\n")
                .text("fp8_opt_level"),
            "O1");
  EXPECT_EQ(resolved({}, "distributed_type: FSDP\nfsdp_config: {fsdp_transformer_cls_to_wrap: B}\n")
                .text("fsdp_transformer_layer_cls_to_wrap"),
            "B");
  EXPECT_EQ(resolved({},
                     "distributed_type: MEGATRON_LM\n"
                     "megatron_lm_config: {megatron_lm_sequence_parallel: true}\n")
                .text("megatron_lm_sequence_parallelism"),
            "true");
}

TEST(CheckStatus, SaysWhereItIsAskedFor) {
  const auto message = [](const TypedFlags& typed, const std::string& config,
                          const std::vector<std::string>& environment) {
    return std::string(check_status(resolved(typed, config, environment)).message());
  };
  EXPECT_EQ(message({}, "", {}), "");
  EXPECT_EQ(message({}, kFsdp, {}), "");
  EXPECT_EQ(message({{"use_deepspeed", {"true"}}, {"zero_stage", {"3"}}}, "", {}), "");
  EXPECT_EQ(message({},
                    "distributed_type: MEGATRON_LM\nnum_processes: 2\nmegatron_lm_config:\n"
                    "  megatron_lm_tp_degree: 2\n",
                    {}),
            "");
  // A program may have registered any compiler, so its ranks refuse those that there are not.
  for (const char* name : {"INDUCTOR", "TVM", "TORCHXLA_TRACE_ONCE", "TORHCHXLA_TRACE_ONCE"}) {
    EXPECT_EQ(message({}, "", {absl::StrCat("ACCELERATE_DYNAMO_BACKEND=", name)}), "") << name;
  }
  EXPECT_EQ(message({}, "", {"ACCELERATE_DYNAMO_BACKEND=NO", "ACCELERATE_USE_MEGATRON_LM=false"}),
            "");
  EXPECT_EQ(message({{"fsdp_version", {"1"}}, {"zero3_init_flag", {"false"}}}, "", {}), "");
  // Configuration files for GPUs may have the key downcast_bf16, which has no effect there.
  EXPECT_EQ(message({}, "distributed_type: FSDP\nnum_processes: 2\ndowncast_bf16: true\n", {}), "");
  EXPECT_EQ(message({}, "distributed_type: XLA\nnum_processes: 8\ndowncast_bf16: true\n", {}),
            "c.yaml:3: downcast_bf16: true is not in this version; leave it out");
  EXPECT_EQ(message({{"downcast_bf16", {"true"}}}, "", {}),
            "--downcast_bf16 is not in this version; leave it out");
  const std::string mesh = "distributed_type: MULTI_GPU\nparallelism_config:\n";
  for (const char* axis : {"pp", "cp", "sp"}) {
    EXPECT_EQ(message({}, absl::StrCat(mesh, "  ", axis, "_size: 2\n"), {}), "");
    EXPECT_EQ(message({{absl::StrCat("parallelism_config_", axis, "_size"), {"2"}}}, "", {}), "");
  }
  EXPECT_EQ(message({}, "", {"PARALLELISM_CONFIG_SP_SEQ_LENGTH=4096"}), "");
  EXPECT_EQ(message({}, mesh + "  dp_shard_size: 2\n  tp_size: 2\n", {}), "");
  EXPECT_EQ(message({{"parallelism_config_tp_size", {"2"}}}, "", {}), "");
  EXPECT_EQ(message({}, "", {"PARALLELISM_CONFIG_TP_SIZE=2"}), "");
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
  EXPECT_THAT(
      error_of({{"use_fsdp", {"true"}}, {"fsdp_sync_module_states", {"False"}}}, devices(2)),
      HasSubstr("fsdp_cpu_ram_efficient_loading needs fsdp_sync_module_states"));
  EXPECT_THAT(error_of({{"nnodes", {"2:4"}}}, kNoDevices), HasSubstr("--rdzv_backend c10d"));
  EXPECT_THAT(error_of({{"rdzv_backend", {"etcd"}}}, kNoDevices), HasSubstr("static, or c10d"));
  EXPECT_THAT(error_of({{"monitor_interval", {"0"}}}, kNoDevices), HasSubstr("above 0"));
  EXPECT_THAT(error_of({{"tpu", {"true"}}}, kNoDevices), HasSubstr("no TPU"));
  completed({{"tpu", {"true"}}, {"dry_run", {"true"}}}, kNoDevices);
  const TypedFlags offload = {{"use_fsdp", {"true"}},
                              {"fsdp_activation_checkpointing_offload", {"true"}}};
  TypedFlags both = offload;
  both["fsdp_activation_checkpointing"] = {"true"};
  for (const TypedFlags& typed : {offload, both}) {
    EXPECT_THAT(error_of(typed, devices(2)),
                HasSubstr("needs --fsdp_activation_checkpointing true and --fsdp_version 2"));
  }
  both["fsdp_version"] = {"2"};
  EXPECT_THAT(child_environment(completed(both, devices(2)), devices(2), {}),
              Contains(Pair("FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "true")));
  EXPECT_THAT(
      error_of({}, devices(4), "distributed_type: MULTI_GPU\ngpu_ids: '0'\nnum_processes: 2\n"),
      HasSubstr("c.yaml:2: gpu_ids: 0: 2 ranks need at least two devices"));
}

TEST(Complete, AMeshNeedsNoFsdp) {
  for (const char* axis : {"dp_replicate", "dp_shard", "tp", "cp", "sp", "pp"}) {
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

TEST(CheckMeshSize, NamesTheFlagsBothNumbersAndAProposal) {
  const auto message = [](const TypedFlags& sizes, int64_t ranks) {
    TypedFlags typed = {{"use_parallelism_config", {"true"}}};
    for (const auto& [name, value] : sizes) typed["parallelism_config_" + name] = value;
    return std::string(check_mesh_size(resolved(typed), ranks).message());
  };
  EXPECT_EQ(message({{"tp_size", {"2"}}}, 8),
            "--parallelism_config_tp_size=2 is a mesh of 2 ranks, and the run has 8; give "
            "--parallelism_config_dp_replicate_size 4, or --num_processes 2");
  EXPECT_EQ(message({{"dp_replicate_size", {"2"}}, {"dp_shard_size", {"2"}}}, 8),
            "--parallelism_config_dp_replicate_size=2, --parallelism_config_dp_shard_size=2 are a "
            "mesh of 4 ranks, and the run has 8; give --parallelism_config_dp_replicate_size 4, or "
            "--num_processes 4");
  EXPECT_THAT(message({{"dp_shard_size", {"3"}}}, 8), HasSubstr("give sizes whose product"));
  EXPECT_EQ(message({{"dp_replicate_size", {"4"}}, {"tp_size", {"2"}}}, 8), "");
  // Replicas take the ranks that sequences leave, unless their number is given.
  EXPECT_EQ(message({{"sp_size", {"2"}}}, 8), "");
  EXPECT_EQ(message({{"sp_size", {"2"}}, {"tp_size", {"2"}}}, 8), "");
  EXPECT_THAT(message({{"sp_size", {"3"}}}, 8), HasSubstr("is a mesh of 3 ranks"));
  EXPECT_THAT(message({{"sp_size", {"2"}}, {"dp_shard_size", {"2"}}}, 8),
              HasSubstr("are a mesh of 4 ranks, and the run has 8"));
  EXPECT_EQ(message({}, 8), "");
  const auto experts = [](const std::string& ep_size) {
    return resolved({{"use_parallelism_config", {"true"}},
                     {"parallelism_config_dp_shard_size", {"8"}},
                     {"parallelism_config_ep_size", {ep_size}}});
  };
  EXPECT_TRUE(check_mesh_size(experts("4"), 8).ok());
  EXPECT_EQ(check_mesh_size(experts("3"), 8).message(),
            "ep_size=3 does not divide the 8 ranks of dp_shard_size * cp_size * sp_size, among "
            "which experts are divided; the nearest layout that works: dp_shard 8, ep 2");
  EXPECT_TRUE(check_mesh_size(resolved({{"parallelism_config_tp_size", {"2"}}}), 8).ok());
}

// Each axis with one rank or two, beside each engine.
TEST(CheckMeshSize, RefusesTheProductsThatTheTableRefuses) {
  constexpr const char* kAxes[] = {"pp", "dp_replicate", "dp_shard", "cp", "sp", "tp", "ep"};
  for (const char* engine : {"", "use_fsdp", "use_deepspeed"}) {
    for (int bits = 0; bits < 1 << 7; ++bits) {
      TypedFlags typed = {{"use_parallelism_config", {"true"}}, {"fsdp_version", {"2"}}};
      if (*engine != '\0') typed[engine] = {"true"};
      for (int axis = 0; axis < 7; ++axis) {
        if ((bits >> axis & 1) == 0) continue;
        typed[absl::StrCat("parallelism_config_", kAxes[axis], "_size")] = {"2"};
      }
      const Settings settings = resolved(typed);
      const RankLayout layout = layout_of(settings);
      SCOPED_TRACE(layout.text());
      const auto illegal = find_illegal(layout);
      EXPECT_EQ(check_mesh_size(settings, layout.num_ranks()).message(),
                illegal ? illegal->text() : "");
    }
  }
}

// What help, questions and refusals of the launcher say of an axis is what the table says.
TEST(CheckStatus, RefusesTheAxesThatTheTableRefuses) {
  for (const MeshAxis axis : {MeshAxis::kPp, MeshAxis::kDpReplicate, MeshAxis::kDpShard,
                              MeshAxis::kCp, MeshAxis::kSp, MeshAxis::kTp, MeshAxis::kEp}) {
    const std::string name = absl::StrCat("parallelism_config_", to_string(axis), "_size");
    RankLayout layout{.dp_shard = 2};
    size_along(layout, axis) = 2;
    EXPECT_EQ(setting(name).works(), !find_illegal(layout)) << name;
  }
}

TEST(NoteOnMesh, NamesTypedSizesThatNoRankGets) {
  EXPECT_EQ(note_on_mesh(resolved({})), "");
  EXPECT_EQ(note_on_mesh(resolved({{"parallelism_config_tp_size", {"2"}}})),
            "--parallelism_config_tp_size=2 has no effect without --use_parallelism_config");
  EXPECT_EQ(
      note_on_mesh(resolved({{"parallelism_config_dp_replicate_size", {"2"}},
                             {"parallelism_config_dp_shard_size", {"1"}},
                             {"parallelism_config_tp_size", {"4"}}})),
      "--parallelism_config_dp_replicate_size=2, --parallelism_config_tp_size=4 have no effect "
      "without --use_parallelism_config");
  const TypedFlags used = {{"use_parallelism_config", {"true"}},
                           {"parallelism_config_tp_size", {"2"}}};
  EXPECT_EQ(note_on_mesh(resolved(used)), "");
  EXPECT_EQ(note_on_mesh(
                resolved({}, "distributed_type: MULTI_GPU\nparallelism_config:\n  tp_size: 2\n")),
            "")
      << "the section by itself uses it";
}

TEST(Endpoint, IsCheckedAtEveryEntrance) {
  const auto two_machines = [](TypedFlags typed) {
    typed["num_machines"] = {"2"};
    typed["num_processes"] = {"2"};
    return typed;
  };
  EXPECT_THAT(
      error_of(two_machines({{"rdzv_endpoint", {"fe80::1:29500"}}}), kNoDevices),
      HasSubstr("--rdzv_endpoint=fe80::1:29500: \"fe80::1:29500\" is an IPv6 address with a "
                "port, which needs brackets: [fe80::1]:29500"));
  EXPECT_THAT(error_of(two_machines({{"main_process_ip", {"::1:29500"}}}), kNoDevices),
              HasSubstr("--main_process_ip=::1:29500: "));
  EXPECT_THAT(error_of({{"local_addr", {"::1:29500"}}}, kNoDevices),
              HasSubstr("--local_addr=::1:29500: "));
  EXPECT_THAT(error_of({}, kNoDevices,
                       "distributed_type: MULTI_CPU\nnum_processes: 2\nmain_process_ip: a b\n"),
              HasSubstr("c.yaml:3: main_process_ip: a b: \"a b\" has a blank"));
  EXPECT_THAT(error_of(two_machines({{"main_process_ip", {"h:1"}}, {"main_process_port", {"2"}}}),
                       kNoDevices),
              HasSubstr("--main_process_ip=h:1 and --main_process_port=2 name two ports"));
  // An address alone is what the flag asks for.
  EXPECT_EQ(endpoint_of(resolved({{"main_process_ip", {"2001:db8::7:8"}}}))->host, "2001:db8::7:8");
  EXPECT_EQ(
      endpoint_of(resolved({{"main_process_ip", {"[::1]"}}, {"main_process_port", {"5"}}}))->port,
      5);
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

TEST(Complete, HasTheRangeOfEachRow) {
  struct Range {
    const char* name;
    int64_t least;
    int64_t most;
  };
  for (const Range& range : {Range{"megatron_lm_tp_degree", 1, 1048576},
                             {"megatron_lm_pp_degree", 1, 1048576},
                             {"num_cpu_threads_per_process", 1, 1048576},
                             {"fp8_interval", 1, 2147483647},
                             {"kill_grace", 0, 86400}}) {
    for (const int64_t outside : {range.least - 1, range.most + 1}) {
      EXPECT_EQ(error_of({{range.name, {absl::StrCat(outside)}}}, kNoDevices),
                absl::StrCat("--", range.name, "=", outside, " is not a whole number from ",
                             range.least, " to ", range.most));
    }
    for (const int64_t inside : {range.least, range.most}) {
      EXPECT_EQ(completed({{range.name, {absl::StrCat(inside)}}}, kNoDevices).number(range.name),
                inside);
    }
  }
}

// A file and the scheduler are about this machine and real runs; what a training is given stays.
TEST(Complete, LeavesTheMachineOutOfASimulatedCluster) {
  for (const char* machine :
       {"distributed_type: MULTI_CPU\nuse_cpu: true\nnum_processes: 8\n",
        "distributed_type: MULTI_GPU\nnum_processes: 1\ngpu_ids: '0'\n",
        "distributed_type: 'NO'\nnum_processes: 3\nnum_machines: 2\nmachine_rank: 1\n"
        "rdzv_backend: etcd\nmain_process_ip: far\nmain_process_port: 80\n",
        "distributed_type: XLA\nnum_processes: 8\ntpu_use_cluster: true\ntpu_name: pod\n"}) {
    for (const char* spec : {"2x4", "2x4:h100"}) {
      const Settings settings = completed({{"simulate", {spec}}}, devices(4),
                                          absl::StrCat(machine, "mixed_precision: bf16\n"));
      for (const char* name : {"cpu", "multi_gpu", "tpu", "tpu_use_cluster"}) {
        EXPECT_FALSE(settings.flag(name)) << name << "\n" << machine;
      }
      EXPECT_EQ(settings.number("num_processes"), 1) << machine;
      EXPECT_EQ(settings.number("num_machines"), 1) << machine;
      EXPECT_EQ(settings.text("gpu_ids"), "");
      EXPECT_EQ(settings.text("mixed_precision"), "bf16");
      EXPECT_THAT(
          child_environment(settings, devices(4), {}),
          AllOf(Contains(Pair("ACCELERATE_USE_CPU", "False")),
                Not(Contains(Key("OMP_NUM_THREADS"))), Not(Contains(Key("CUDA_VISIBLE_DEVICES")))));
    }
  }
  const Settings of_job = completed({{"simulate", {"2x4"}}}, kNoDevices, "",
                                    {.kind = JobKind::kSageMaker, .nodes = 2, .first_host = "a"});
  EXPECT_EQ(of_job.number("num_machines"), 1);
  EXPECT_FALSE(completed({{"simulate", {"2x4:h100"}}, {"multi_gpu", {"true"}}}, kNoDevices)
                   .flag("multi_gpu"));
  EXPECT_TRUE(completed({{"simulate", {"2x4"}}}, kNoDevices,
                        "distributed_type: FSDP\nnum_processes: 2\nuse_cpu: true\n")
                  .flag("use_fsdp"));
}

std::vector<std::string> words_of(const TypedFlags& typed, const std::string& config = "",
                                  const std::vector<std::string>& environment = {}) {
  return settings_words(resolved(typed, config, environment), environment);
}

TEST(SettingsWords, SpellWhatRanksGetWhereverItCameFrom) {
  EXPECT_THAT(words_of({{"num_processes", {"4"}}, {"simulate", {"2x4"}}, {"log_dir", {"l"}}}),
              ElementsAre());
  EXPECT_THAT(words_of({{"use_fsdp", {"true"}},
                        {"fsdp_version", {"2"}},
                        {"fsdp_offload_params", {"false"}},
                        {"gradient_accumulation_steps", {"1"}},
                        {"num_cpu_threads_per_process", {"3"}}}),
              ElementsAre("--gradient_accumulation_steps", "1", "--num_cpu_threads_per_process",
                          "3", "--use_fsdp", "--fsdp_version", "2"));
  EXPECT_THAT(
      words_of({},
               "distributed_type: FSDP\nnum_processes: 2\nmixed_precision: fp8\n"
               "fsdp_config:\n  fsdp_auto_wrap_policy: SIZE_BASED_WRAP\n"
               "  fsdp_min_num_params: 7\nfp8_config:\n  backend: AO\n"),
      ElementsAre("--mixed_precision", "fp8", "--use_fsdp", "--fp8_backend", "ao",
                  "--fsdp_auto_wrap_policy", "SIZE_BASED_WRAP", "--fsdp_min_num_params", "7"));
  EXPECT_THAT(words_of({},
                       "distributed_type: DEEPSPEED\nnum_processes: 2\n"
                       "deepspeed_config:\n  zero_stage: 3\n  gradient_clipping: 0.5\n"
                       "  gradient_accumulation_steps: 4\n"),
              ElementsAre("--gradient_accumulation_steps", "4", "--use_deepspeed", "--zero_stage",
                          "3", "--gradient_clipping", "0.5"));
  EXPECT_THAT(words_of({},
                       "distributed_type: MULTI_GPU\nnum_processes: 8\n"
                       "parallelism_config:\n  parallelism_config_tp_size: 2\n"),
              ElementsAre("--use_parallelism_config", "--parallelism_config_tp_size", "2"));
  EXPECT_THAT(words_of({}, "",
                       {"ACCELERATE_USE_DEEPSPEED=true", "ACCELERATE_DEEPSPEED_ZERO_STAGE=2",
                        "ACCELERATE_MIXED_PRECISION=BF16"}),
              ElementsAre("--mixed_precision", "bf16", "--use_deepspeed", "--zero_stage", "2"));
}

// Unset, it is what the stage wants.
TEST(SettingsWords, SpellAFalseThatHasNoDefault) {
  EXPECT_THAT(words_of({{"use_deepspeed", {"true"}}, {"zero3_init_flag", {"false"}}}),
              ElementsAre("--use_deepspeed", "--zero3_init_flag", "false"));
}

// An engine's settings do not reach ranks while it is off.
TEST(SettingsWords, LeaveOutWhatNobodyReads) {
  EXPECT_THAT(words_of({{"fsdp_version", {"2"}}, {"zero_stage", {"3"}}, {"fp8_backend", {"te"}}}),
              ElementsAre());
}

// The variable would count where the line says nothing.
TEST(SettingsWords, SpellADefaultValueThatAVariableContradicts) {
  EXPECT_THAT(words_of({{"mixed_precision", {"no"}}}, "", {"ACCELERATE_MIXED_PRECISION=bf16"}),
              ElementsAre("--mixed_precision", "no"));
  EXPECT_THAT(words_of({{"use_fsdp", {"true"}}, {"fsdp_version", {"1"}}}, "", {"FSDP_VERSION=2"}),
              ElementsAre("--use_fsdp", "--fsdp_version", "1"));
}

TEST(Complete, KeepsSimulationsToThemselves) {
  EXPECT_THAT(error_of({{"simulate", {"1x2"}}, {"num_processes", {"2"}}}, kNoDevices),
              HasSubstr("--simulate=1x2 and --num_processes exclude each other"));
  EXPECT_THAT(error_of({{"num_processes", {"2"}}}, kNoDevices,
                       "distributed_type: MULTI_CPU\nsimulate: 1x2\n"),
              HasSubstr("c.yaml:2: simulate: 1x2 and --num_processes exclude each other"));
  EXPECT_THAT(error_of({{"simulate", {"1x2"}}, {"main_process_port", {"2"}}}, kNoDevices),
              HasSubstr("--main_process_port"));
  EXPECT_THAT(error_of({{"simulate_seed", {"1"}}}, kNoDevices), HasSubstr("--simulate"));
  for (const char* name : {"seeds", "no_detect", "faults"}) {
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
  EXPECT_THAT(
      error_of({{"simulate", {"1x1"}}, {"seeds", {"0:2"}}, {"replay", {"run.log"}}}, kNoDevices),
      HasSubstr("--replay and --seeds exclude each other"));
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

TEST(Complete, KeepsWhatASimulatedRunIsToldToSimulations) {
  const TypedFlags told = {{"timeouts", {"wait"}},
                           {"semantics", {"gloo"}},
                           {"log", {"run.log"}},
                           {"replay", {"run.log"}},
                           {"twice", {"true"}}};
  for (const auto& [name, values] : told) {
    EXPECT_THAT(error_of({{name, values}}, kNoDevices),
                HasSubstr(absl::StrCat("--", name, " has no meaning without --simulate")));
    EXPECT_TRUE(completed({{"simulate", {"1x2"}}, {name, values}}, kNoDevices).is_set(name));
  }
}

TEST(Complete, ASimulatedClusterIsOneProcess) {
  const TypedFlags of_machines = {
      {"main_process_ip", {"h"}}, {"num_machines", {"2"}},    {"machine_rank", {"1"}},
      {"mpirun_hostfile", {"H"}}, {"slurm", {"true"}},        {"nnodes", {"2"}},
      {"nproc_per_node", {"2"}},  {"rdzv_endpoint", {"h:1"}}, {"standalone", {"true"}}};
  for (const auto& [name, values] : of_machines) {
    EXPECT_THAT(error_of({{"simulate", {"1x2"}}, {name, values}}, kNoDevices),
                HasSubstr(absl::StrCat("--simulate=1x2 and --", name, " exclude each other")));
  }
  EXPECT_EQ(
      completed({{"simulate", {"1x2"}}, {"slurm", {"false"}}}, kNoDevices).number("num_processes"),
      1);
}

// Several devices make it no other kind of run.
TEST(Complete, AnEngineIsTheKindOfItsRun) {
  for (const char* kind : {"FSDP", "DEEPSPEED", "MEGATRON_LM"}) {
    const std::string file = absl::StrCat("distributed_type: ", kind, "\nnum_processes: 2\n");
    EXPECT_FALSE(completed({}, devices(2), file).flag("multi_gpu")) << kind;
  }
  EXPECT_TRUE(completed({}, devices(2)).flag("multi_gpu"));
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

}  // namespace
}  // namespace accelerate::launcher::settings
