// What ranks get of the settings, in their environment.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "launch/settings/settings.h"
#include "launch/settings/validate.h"

namespace accelerate::launcher::settings {
namespace {

using process::EnvironmentOverlay;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::IsSupersetOf;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

const Machine kNoDevices = {.count_physical_cores = [] { return 8; }};

Machine devices(int count) {
  return {.device_kind = "gpu", .devices = count, .count_physical_cores = [] { return 8; }};
}

Settings completed(const TypedFlags& typed, const Machine& machine,
                   const std::string& config = "") {
  ConfigFile file;
  if (!config.empty()) {
    absl::StatusOr<ConfigFile> parsed = parse_config(config, ConfigFormat::kYaml, "/a/c.yaml");
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    if (parsed.ok()) file = *std::move(parsed);
  }
  absl::StatusOr<Settings> settings =
      Settings::resolve(typed, config.empty() ? nullptr : &file, {});
  EXPECT_TRUE(settings.ok()) << settings.status();
  if (!settings.ok()) return Settings();
  const absl::Status status = complete(*settings, machine, Job());
  EXPECT_TRUE(status.ok()) << status;
  return *std::move(settings);
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

TEST(ChildEnvironment, SaysWhatMegatronIsTold) {
  const std::string file =
      "distributed_type: MEGATRON_LM\nnum_processes: 2\nmegatron_lm_config:\n"
      "  megatron_lm_sequence_parallelism: true\n  megatron_lm_tp_degree: 2\n";
  const EnvironmentOverlay variables =
      child_environment(completed({}, devices(2), file), devices(2), {});
  EXPECT_THAT(variables,
              IsSupersetOf({Pair("ACCELERATE_USE_MEGATRON_LM", "true"),
                            Pair("MEGATRON_LM_TP_DEGREE", "2"), Pair("MEGATRON_LM_PP_DEGREE", "1"),
                            Pair("MEGATRON_LM_GRADIENT_CLIPPING", "1.0"),
                            Pair("MEGATRON_LM_SEQUENCE_PARALLELISM", "true")}));
  EXPECT_THAT(variables, Not(Contains(Key("MEGATRON_LM_NUM_MICRO_BATCHES"))));
  EXPECT_THAT(
      child_environment(completed({{"megatron_lm_tp_degree", {"2"}}}, devices(2)), devices(2), {}),
      Not(Contains(Key("MEGATRON_LM_TP_DEGREE"))))
      << "without the engine its options do not reach the ranks";
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

// A window of one rank has micro-batches, too; what else pipelines have needs stages.
TEST(ChildEnvironment, HasTheMicroBatchesOfWindowsWithoutStages) {
  const EnvironmentOverlay variables =
      child_environment(completed({{"use_parallelism_config", {"true"}},
                                   {"parallelism_config_pp_micro_batches", {"8"}},
                                   {"parallelism_config_pp_split_points", {"blocks.1"}}},
                                  kNoDevices),
                        kNoDevices, {});
  EXPECT_THAT(variables, Contains(Pair("PARALLELISM_CONFIG_PP_MICRO_BATCHES", "8")));
  for (const char* name : {"PP_SIZE", "PP_PLACEMENT", "PP_SCHEDULE", "PP_STAGES_PER_RANK",
                           "PP_SPLIT_POINTS", "EP_SIZE", "CP_COMM_STRATEGY", "SP_SEQ_LENGTH"}) {
    EXPECT_THAT(variables, Not(Contains(Key(absl::StrCat("PARALLELISM_CONFIG_", name)))));
  }
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

// As HF Accelerate sets them; not for ranks that would be bound to the same cores.
TEST(ChildEnvironment, TellsIntelsOpenMpOnCpus) {
  const auto variables = [](const TypedFlags& typed, std::vector<std::string> environment = {}) {
    return child_environment(completed(typed, kNoDevices), kNoDevices, environment);
  };
  const TypedFlags one = {{"cpu", {"true"}}};
  const TypedFlags two = {{"cpu", {"true"}}, {"num_processes", {"2"}}};
  TypedFlags by_mpi = two;
  by_mpi["mpirun_hostfile"] = {"H"};
  for (const TypedFlags& typed : {one, by_mpi}) {
    EXPECT_THAT(variables(typed), Contains(Pair("KMP_AFFINITY", "granularity=fine,compact,1,0")));
    EXPECT_THAT(variables(typed), Contains(Pair("KMP_BLOCKTIME", "1")));
    EXPECT_THAT(variables(typed, {"KMP_AFFINITY=disabled"}), Not(Contains(Key("KMP_AFFINITY"))));
  }
  for (const TypedFlags& typed : {two, TypedFlags(), {{"cpu", {"true"}}, {"simulate", {"1x1"}}}}) {
    EXPECT_THAT(variables(typed), Not(Contains(Key("KMP_AFFINITY"))));
    EXPECT_THAT(variables(typed), Not(Contains(Key("KMP_BLOCKTIME"))));
  }
}

TEST(ChildEnvironment, RanksOfATpuRunDoNotTrainOnTheCpu) {
  Machine machine;
  machine.device_kind = "tpu";
  const TypedFlags typed = {{"tpu", {"true"}}};
  EXPECT_THAT(child_environment(completed(typed, machine), machine, {}),
              Contains(Pair("ACCELERATE_TORCH_DEVICE", "xla")));
  EXPECT_THAT(
      child_environment(completed(typed, machine), machine, {"ACCELERATE_TORCH_DEVICE=cpu"}),
      Not(Contains(Key("ACCELERATE_TORCH_DEVICE"))));
}

TEST(ChildEnvironment, TellsTpusOfBf16) {
  Machine machine;
  machine.device_kind = "tpu";
  const auto variables = [&machine](TypedFlags typed) {
    typed["tpu"] = {"true"};
    return child_environment(completed(typed, machine), machine, {});
  };
  const auto uses = Contains(Pair("XLA_USE_BF16", "1"));
  const auto downcasts = Contains(Pair("XLA_DOWNCAST_BF16", "1"));
  const TypedFlags bf16 = {{"mixed_precision", {"bf16"}}};
  TypedFlags downcast = bf16;
  downcast["downcast_bf16"] = {"true"};
  EXPECT_THAT(variables(bf16), AllOf(uses, Not(downcasts)));
  EXPECT_THAT(variables(downcast), AllOf(downcasts, Not(uses)));
  for (const TypedFlags& other : {TypedFlags(), TypedFlags{{"mixed_precision", {"fp16"}}}}) {
    EXPECT_THAT(variables(other), AllOf(Not(uses), Not(downcasts)));
  }
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
  TypedFlags given = two_cpu;
  given["num_cpu_threads_per_process"] = {"3"};
  EXPECT_EQ(threads(given, {"OMP_NUM_THREADS=8"}), "3");
  // Each MPI has a variable; one that makes no sense is passed over.
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE=4", "MV2_COMM_WORLD_LOCAL_SIZE=4"}) {
    EXPECT_EQ(threads(two_cpu, {name}), "2") << name;
    EXPECT_EQ(threads(two_cpu, {"MPI_LOCALNRANKS=0", name}), "2") << name;
  }
  EXPECT_EQ(threads(two_cpu, {"MPI_LOCALNRANKS=16"}), "1") << "more ranks than cores";
}

// Only the ranks of one machine share its cores.
TEST(ChildEnvironment, SharesCoresBetweenTheRanksOfOneMachine) {
  const auto threads = [](const std::string& processes, bool cpu) {
    TypedFlags typed = {{"num_processes", {processes}}, {"num_machines", {"2"}}};
    if (cpu) typed["cpu"] = {"true"};
    const EnvironmentOverlay variables =
        child_environment(completed(typed, kNoDevices), kNoDevices, {});
    const auto found = variables.find("OMP_NUM_THREADS");
    return found == variables.end() ? "" : *found->second;
  };
  EXPECT_EQ(threads("4", /*cpu=*/true), "4");
  EXPECT_EQ(threads("2", /*cpu=*/true), "8");
  EXPECT_EQ(threads("4", /*cpu=*/false), "1");
  EXPECT_EQ(threads("2", /*cpu=*/false), "") << "each has a machine to itself";
}

}  // namespace
}  // namespace accelerate::launcher::settings
