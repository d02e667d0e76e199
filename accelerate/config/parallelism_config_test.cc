#include "accelerate/config/parallelism_config.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "accelerate/config/model_config.h"
#include "accelerate/platform/environment.h"
#include "accelerate/testing/recorded_warnings.h"
#include "accelerate/testing/value_error.h"
#include "accelerate/values/fields.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Variables = std::vector<std::pair<std::string, std::string>>;

Environment with(const Variables& variables) {
  Environment environment;
  for (const auto& [name, value] : variables) {
    environment.set("PARALLELISM_CONFIG_" + name, value);
  }
  return environment;
}

ParallelismConfig config(ParallelismOptions options, const Variables& variables = {}) {
  return ParallelismConfig(std::move(options), with(variables));
}

std::string refused(const ParallelismOptions& options, const Variables& variables = {}) {
  return value_error_of([&] { config(options, variables); });
}

AcceleratorFacts gpus(int num_processes) {
  return {.multi_device = true,
          .num_processes = num_processes,
          .distributed_type = DistributedType::kMultiGpu};
}

TEST(MeshAxes, ConsistOfTheAxesThatDivideTheRanks) {
  using enum MeshAxis;
  EXPECT_THAT(parts_of(kPp), ElementsAre(kPp));
  EXPECT_THAT(parts_of(kTp), ElementsAre(kTp));
  EXPECT_THAT(parts_of(kDp), ElementsAre(kDpReplicate, kDpShard));
  EXPECT_THAT(parts_of(kDpShardCp), ElementsAre(kDpShard, kCp));
  EXPECT_THAT(parts_of(kDpCp), ElementsAre(kDpReplicate, kDpShard, kCp));
  EXPECT_THAT(parts_of(kEp), ElementsAre(kEp));
  EXPECT_THAT(parts_of(kEdp), ElementsAre(kEdp));
}

TEST(ParallelismConfig, IsOneRankWithoutArguments) {
  const ParallelismConfig alone = config({});
  EXPECT_EQ(alone.total_size(), 1);
  EXPECT_THAT(alone.active_mesh_dims(), IsEmpty());
  EXPECT_THAT(alone.fsdp_dim_names(), ElementsAre("dp_shard_cp"));
  EXPECT_EQ(alone.cp_backend(), "torch");
  EXPECT_EQ(alone.sp_backend(), "deepspeed");
  EXPECT_FALSE(alone.tp_handler() || alone.cp_handler() || alone.sp_handler());
  EXPECT_EQ(alone, config({.tp_size = 1}));
}

TEST(ParallelismConfig, CountsAndNamesItsAxes) {
  const ParallelismConfig mesh = config(
      {.dp_replicate_size = 2, .dp_shard_size = 3, .tp_size = 4, .cp_size = 5, .pp_size = 6});
  EXPECT_EQ(mesh.total_size(), 720);
  EXPECT_EQ(mesh.data_parallel_size(), 6);
  EXPECT_EQ(mesh.non_data_parallel_size(), 120);
  EXPECT_EQ(mesh.size(MeshAxis::kDpShardCp), 15);
  EXPECT_EQ(mesh.size(MeshAxis::kDpCp), 30);
  EXPECT_EQ(mesh.size(MeshAxis::kDpCpSp), 30);
  EXPECT_EQ(mesh.size(MeshAxis::kDpShardCpSp), 15);
  EXPECT_EQ(config({.dp_shard_size = 3, .sp_size = 7}).size(MeshAxis::kDpShardCpSp), 21);
  EXPECT_THAT(mesh.dp_dim_names(), ElementsAre("dp_replicate", "dp_shard"));
  EXPECT_THAT(mesh.non_dp_dim_names(), ElementsAre("tp", "cp", "pp"));
  EXPECT_THAT(mesh.dp_shard_cp_dim_names(), ElementsAre("dp_shard", "cp"));
  EXPECT_THAT(mesh.dp_cp_dim_names(), ElementsAre("dp_replicate", "dp_shard", "cp"));
  EXPECT_THAT(mesh.fsdp_dim_names(), ElementsAre("dp_replicate", "dp_shard_cp"));
  EXPECT_THAT(mesh.active_mesh_dims(), ElementsAre("dp_replicate", "dp_shard", "tp", "cp", "pp"));
  EXPECT_TRUE(mesh.tp_handler() && mesh.cp_handler() && !mesh.sp_handler());
}

TEST(ParallelismConfig, TakesWhatTheProgramLeavesOpenFromTheEnvironment) {
  const Variables variables = {{"DP_REPLICATE_SIZE", "2"},
                               {"DP_SHARD_SIZE", "3"},
                               {"TP_SIZE", "5"},
                               {"SP_SIZE", "7"},
                               {"PP_SIZE", "11"},
                               {"EP_SIZE", "3"},
                               {"PP_PLACEMENT", "inside_dp_replicate"},
                               {"SP_SEQ_LENGTH_IS_VARIABLE", "False"},
                               {"SP_SEQ_LENGTH", "128"},
                               {"SP_ATTN_IMPLEMENTATION", "sdpa"}};
  const ParallelismConfig mesh = config({.tp_size = 13}, variables);
  EXPECT_EQ(mesh, config({.dp_replicate_size = 2,
                          .dp_shard_size = 3,
                          .tp_size = 13,
                          .sp_size = 7,
                          .sp_handler =
                              DeepSpeedSequenceParallelConfig{.sp_seq_length = 128,
                                                              .sp_seq_length_is_variable = false,
                                                              .sp_attn_implementation = "sdpa"},
                          .pp_size = 11,
                          .pp_placement = PpPlacement::kInsideDpReplicate,
                          .ep_size = 3}));
  EXPECT_EQ(config({}, {{"CP_SIZE", "2"}, {"CP_COMM_STRATEGY", "alltoall"}}).cp_handler(),
            TorchContextParallelConfig{.cp_comm_strategy = "alltoall"});
}

TEST(ParallelismConfig, NamesVariablesThatItCannotRead) {
  EXPECT_THAT(refused({}, {{"TP_SIZE", "two"}}), HasSubstr("PARALLELISM_CONFIG_TP_SIZE=\"two\""));
  EXPECT_THAT(refused({}, {{"PP_SIZE", ""}}), HasSubstr("PARALLELISM_CONFIG_PP_SIZE=\"\""));
  EXPECT_THAT(refused({}, {{"EP_SIZE", "x"}}), HasSubstr("PARALLELISM_CONFIG_EP_SIZE=\"x\""));
  EXPECT_THAT(refused({}, {{"PP_PLACEMENT", "middle"}}),
              AllOf(HasSubstr("PARALLELISM_CONFIG_PP_PLACEMENT=\"middle\""),
                    HasSubstr("inside_dp_replicate")));
  EXPECT_THAT(refused({.sp_size = 2}, {{"SP_SEQ_LENGTH_IS_VARIABLE", "perhaps"}}),
              HasSubstr("PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE=\"perhaps\""));
  EXPECT_EQ(refused({.tp_size = 2}, {{"TP_SIZE", "two"}}), "no error")
      << "an argument makes its variable irrelevant";
}

TEST(ParallelismConfig, RefusesSizesThatDoNotGoTogether) {
  EXPECT_EQ(refused({.tp_size = 0}), "tp_size must be at least 1, but got 0");
  EXPECT_EQ(refused({.pp_size = -1}), "pp_size must be at least 1, but got -1");
  EXPECT_EQ(refused({.sp_backend = "ring"}),
            "sp_backend must be one of ['deepspeed'], but got ring");
  EXPECT_THAT(refused({.cp_size = 2, .sp_size = 2}), HasSubstr("mutually exclusive"));
  EXPECT_THAT(refused({.dp_replicate_size = 2, .cp_size = 2}),
              AllOf(HasSubstr("cannot be used with pure data parallelism"),
                    HasSubstr(". The nearest layout that works: dp_shard 2 x cp 2")));
  EXPECT_EQ(refused({.dp_replicate_size = 2, .tp_size = 2}), "no error");
  EXPECT_EQ(refused({.dp_replicate_size = 2, .dp_shard_size = 2, .tp_size = 2}), "no error");
  EXPECT_EQ(refused({.dp_replicate_size = 2, .sp_size = 2, .pp_size = 2}), "no error");
  EXPECT_EQ(refused({.dp_shard_size = 4, .ep_size = 2}), "no error");
  EXPECT_EQ(refused({.ep_size = 0}), "ep_size must be at least 1, but got 0");
  EXPECT_EQ(refused({.dp_shard_size = 4, .ep_size = 3}),
            "ep_size=3 does not divide the 4 ranks of dp_shard_size * cp_size * sp_size, among "
            "which experts are divided; the nearest layout that works: dp_shard 4, ep 2");
  EXPECT_EQ(refused({.cp_size = 2, .ep_size = 2}), "no error");
  EXPECT_EQ(refused({.dp_shard_size = 2, .sp_size = 3, .ep_size = 6}), "no error");
  EXPECT_THAT(refused({.dp_replicate_size = 2, .ep_size = 2}), HasSubstr("works: dp_replicate 2"));
  EXPECT_THAT(refused({.dp_shard_size = 1 << 20, .tp_size = 1 << 11}),
              HasSubstr("more than 2147483647 ranks"));
  EXPECT_THAT(refused({.dp_shard_size = int64_t{1} << 62, .tp_size = int64_t{1} << 62}),
              HasSubstr("more than 2147483647 ranks"));
}

TEST(ParallelismConfig, ChecksHandlers) {
  EXPECT_THAT(refused({.cp_handler = TorchContextParallelConfig{.cp_comm_strategy = "ring"}}),
              HasSubstr("Invalid cp_comm_strategy: ring"));
  const auto refused_sp = [](const DeepSpeedSequenceParallelConfig& handler) {
    return value_error_of([&] { resolve(handler, Environment()); });
  };
  EXPECT_THAT(refused_sp({.sp_seq_length_is_variable = false}), HasSubstr("must be provided"));
  EXPECT_EQ(refused_sp({.sp_seq_length = 8, .sp_seq_length_is_variable = false}), "no error");
  EXPECT_THAT(refused_sp({.sp_attn_implementation = "eager"}), HasSubstr("are not supported"));
  EXPECT_THAT(refused_sp({.sp_attn_implementation = "fast"}), HasSubstr("Must be one of"));
  EXPECT_EQ(refused_sp({.sp_attn_implementation = "kernels-community/flash-attn2"}), "no error");
}

// As in HF Accelerate, which has no product that overlaps with its messages either.
TEST(ParallelismConfig, IgnoresAsynchronousTensorParallelismWithAWarning) {
  const TorchTensorParallelConfig asked = {.enable_async_tp = true};
  const auto warnings_of = [](const TorchTensorParallelConfig& handler) {
    const RecordedWarnings warnings;
    const ParallelismConfig mesh = config({.tp_size = 2, .tp_handler = handler});
    EXPECT_EQ(mesh.tp_handler(), handler);
    return warnings.texts();
  };
  EXPECT_THAT(warnings_of(asked),
              ElementsAre("UserWarning: Async tensor parallelism is currently not supported, "
                          "ignoring this option."));
  EXPECT_THAT(warnings_of({}), IsEmpty());
}

TEST(ParallelismConfig, FitsItsAccelerator) {
  ParallelismConfig replicas = config({});
  replicas.validate_accelerator(gpus(4));
  EXPECT_EQ(replicas.dp_replicate_size(), 4) << "all ranks of a job without axes are replicas";
  ParallelismConfig alone = config({});
  alone.validate_accelerator({});
  EXPECT_EQ(alone.total_size(), 1);

  const auto refused_by = [](ParallelismConfig mesh, const AcceleratorFacts& accelerator) {
    return value_error_of([&] { mesh.validate_accelerator(accelerator); });
  };
  const AcceleratorFacts cpus = {.num_processes = 4,
                                 .distributed_type = DistributedType::kMultiCpu};
  EXPECT_EQ(refused_by(config({.tp_size = 4}), gpus(4)), "no error");
  EXPECT_THAT(refused_by(config({.tp_size = 4}), gpus(8)),
              AllOf(HasSubstr("total_size (4) does not match num_processes (8)"),
                    HasSubstr("/cp_size/sp_size.")));
  EXPECT_THAT(refused_by(config({.pp_size = 2}), {}), HasSubstr("/cp_size/sp_size/pp_size."));
  EXPECT_THAT(refused_by(config({.tp_size = 4}), cpus),
              HasSubstr("but got DistributedType.MULTI_CPU."));
  AcceleratorFacts sharded = cpus;
  sharded.is_fsdp2 = true;
  for (const ParallelismOptions& options :
       {ParallelismOptions{.dp_shard_size = 4}, ParallelismOptions{.cp_size = 4},
        ParallelismOptions{.dp_shard_size = 2, .tp_size = 2}, ParallelismOptions{},
        ParallelismOptions{.sp_size = 4}, ParallelismOptions{.tp_size = 2, .sp_size = 2}}) {
    EXPECT_EQ(refused_by(config(options), sharded), "no error");
  }
  for (const ParallelismOptions& options :
       {ParallelismOptions{.dp_replicate_size = 4}, ParallelismOptions{.tp_size = 4}}) {
    EXPECT_THAT(refused_by(config(options), sharded),
                HasSubstr("no dimension for FSDP to shard across"));
  }
}

TEST(ParallelismConfig, WarnsOfHandlersOfAxesThatAreOff) {
  const ParallelismOptions options = {.dp_replicate_size = 2,
                                      .tp_handler = TorchTensorParallelConfig{},
                                      .cp_handler = TorchContextParallelConfig{}};
  const auto warnings_on = [&](bool is_main_process) {
    const RecordedWarnings warnings;
    AcceleratorFacts accelerator = gpus(2);
    accelerator.is_main_process = is_main_process;
    config(options).validate_accelerator(accelerator);
    return warnings.texts();
  };
  EXPECT_THAT(warnings_on(true),
              ElementsAre("UserWarning: ParallelismConfig has the following warnings:\n"
                          "ParallelismConfig.cp_handler is set, but cp_size is set to 1. This "
                          "handler will be ignored.\n"
                          "ParallelismConfig.tp_handler is set, but tp_size is set to 1. This "
                          "handler will be ignored."));
  EXPECT_THAT(warnings_on(false), IsEmpty());
}

TEST(ParallelismConfig, IsJson) {
  const nlohmann::ordered_json json = config({.dp_shard_size = 2, .cp_size = 4}).to_json();
  EXPECT_EQ(json.dump(),
            R"({"dp_replicate_size":1,"dp_shard_size":2,"tp_size":1,"cp_size":4,)"
            R"("cp_backend":"torch","sp_size":1,"sp_backend":"deepspeed","tp_handler":null,)"
            R"("cp_handler":{"cp_comm_strategy":"allgather"},"sp_handler":null,"pp_size":1,)"
            R"("pp_placement":"outermost","ep_size":1})");
}

// ---- What a model's own configuration says.

TEST(ModelConfig, SaysHowManyRanksDivideTheLayers) {
  const nlohmann::json config = {{"distributed_config", {{"tp_size", 8}}}};
  EXPECT_EQ(get_model_tp_size(std::nullopt, config), 8);
  EXPECT_EQ(get_model_tp_size(4, config), 4) << "the model itself knows better";
  EXPECT_EQ(get_model_tp_size(0, config), 0);
  for (const char* none : {"null", "{}", R"({"distributed_config": null})",
                           R"({"distributed_config": {"tp_size": null}})"}) {
    EXPECT_EQ(get_model_tp_size(std::nullopt, nlohmann::json::parse(none)), std::nullopt) << none;
    EXPECT_EQ(get_model_tp_size(2, nlohmann::json::parse(none)), 2) << none;
  }
  const nlohmann::json odd = {{"distributed_config", {{"tp_size", "two"}}}};
  EXPECT_THAT(value_error_of([&] { get_model_tp_size(std::nullopt, odd); }),
              HasSubstr("tp_size is a number of ranks, not \"two\""));
}

TEST(ModelConfig, RefusesLayersThatNeedTheWholeSequence) {
  const auto refused_along = [](MeshAxis axis, const char* config) {
    return value_error_of(
        [&] { check_attention_layers(nlohmann::json::parse(config), axis, "Net"); });
  };
  struct Row {
    const char* config;
    const char* along_cp;
    const char* along_sp;
  };
  constexpr char kNone[] = "no error";
  for (const Row& row : {
           Row{"null", kNone, kNone},
           Row{R"({"layer_types": []})", kNone, kNone},
           Row{R"({"layer_types": ["full_attention"], "sliding_window": 8})", kNone, kNone},
           Row{R"({"sliding_window": null})", kNone, kNone},
           Row{R"({"sliding_window": 8})", "type ['sliding_attention'] (model Net)", kNone},
           Row{R"({"layer_types": ["sliding_attention", "chunked_attention", "full_attention"]})",
               "type ['chunked_attention', 'sliding_attention'] (model Net)", kNone},
           Row{R"({"layer_types": ["linear_attention", "full_attention"]})",
               "type ['linear_attention'] (model Net)", "type ['linear_attention'] (model Net)"},
           Row{R"({"layer_types": ["linear_attention", "gated_linear_attention"]})",
               "['gated_linear_attention', 'linear_attention']",
               "['gated_linear_attention', 'linear_attention']"},
           Row{R"({"text_config": {"sliding_window": 8}})", "['sliding_attention']", kNone},
           Row{R"({"text_config": {}, "sliding_window": 8})", kNone, kNone},
       }) {
    EXPECT_THAT(refused_along(MeshAxis::kCp, row.config), HasSubstr(row.along_cp)) << row.config;
    EXPECT_THAT(refused_along(MeshAxis::kSp, row.config), HasSubstr(row.along_sp)) << row.config;
  }
  EXPECT_THAT(refused_along(MeshAxis::kTp, "{}"), HasSubstr("tp divides no sequences"));
}

}  // namespace
}  // namespace accelerate
