// Configurations of a mesh, the ranks of the mesh, and the handlers of its axes.
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerate/base/enums.h"
#include "accelerate/config/model_config.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/testing/recorded_warnings.h"
#include "accelerate/values/fields.h"
#include "accelerate/values/texts.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/family.h"
#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

template <typename T>
std::optional<T> argument(const json& args, const char* name) {
  if (!args.contains(name) || args[name].is_null()) return std::nullopt;
  if constexpr (std::is_same_v<T, std::string>) {
    return string_field(args, name);
  } else if constexpr (std::is_same_v<T, bool>) {
    return bool_field(args, name);
  } else {
    return int_field(args, name);
  }
}

// ---- Handlers.

template <typename Handler>
json resolved(const Handler& handler, const json& in) {
  const RecordedWarnings warnings;
  const json fields = to_dict(resolve(handler, environment_of(in)));
  return {{"fields", fields}, {"warnings", plain_texts(warnings)}};
}

json run_handler(const json& in) {
  expect_fields(in, {"class", "args", "env"});
  const std::string name = string_field(in, "class");
  const json& args = field(in, "args");
  if (name == "TorchTensorParallelConfig") {
    expect_fields(args, {"enable_async_tp"});
    return resolved(
        TorchTensorParallelConfig{.enable_async_tp =
                                      argument<bool>(args, "enable_async_tp").value_or(false)},
        in);
  }
  if (name == "TorchContextParallelConfig") {
    expect_fields(args, {"cp_comm_strategy"});
    return resolved(TorchContextParallelConfig{.cp_comm_strategy =
                                                   argument<std::string>(args, "cp_comm_strategy")},
                    in);
  }
  if (name == "DeepSpeedSequenceParallelConfig") {
    expect_fields(args, {"sp_seq_length", "sp_seq_length_is_variable", "sp_attn_implementation"});
    return resolved(
        DeepSpeedSequenceParallelConfig{
            .sp_seq_length = argument<int64_t>(args, "sp_seq_length"),
            .sp_seq_length_is_variable = argument<bool>(args, "sp_seq_length_is_variable"),
            .sp_attn_implementation = argument<std::string>(args, "sp_attn_implementation")},
        in);
  }
  throw CaseError("class: unknown " + name);
}

// ---- Configurations.

template <typename Handler>
concept IsContextHandler =
    std::is_constructible_v<std::optional<TorchContextParallelConfig>, Handler>;

void add_handler(ParallelismOptions& options, const std::string& name) {
  static_assert(IsContextHandler<TorchContextParallelConfig> &&
                !IsContextHandler<TorchTensorParallelConfig>);
  if (name == "cp_handler_wrong") throw DoesNotCompile();
  if (name == "tp_handler") {
    options.tp_handler = TorchTensorParallelConfig();
  } else if (name == "cp_handler") {
    options.cp_handler = TorchContextParallelConfig();
  } else if (name == "sp_handler") {
    options.sp_handler = DeepSpeedSequenceParallelConfig();
  } else {
    throw CaseError("handlers: unknown " + name);
  }
}

ParallelismConfig config_of(const json& in) {
  const json& args = field(in, "args");
  expect_fields(args, {"dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "cp_backend",
                       "sp_size", "sp_backend"});
  ParallelismOptions options = {.dp_replicate_size = argument<int64_t>(args, "dp_replicate_size"),
                                .dp_shard_size = argument<int64_t>(args, "dp_shard_size"),
                                .tp_size = argument<int64_t>(args, "tp_size"),
                                .cp_size = argument<int64_t>(args, "cp_size"),
                                .cp_backend = argument<std::string>(args, "cp_backend"),
                                .sp_size = argument<int64_t>(args, "sp_size"),
                                .sp_backend = argument<std::string>(args, "sp_backend")};
  if (in.contains("handlers")) {
    for (const json& name : field(in, "handlers")) {
      if (!name.is_string()) throw CaseError("handlers: expected texts");
      add_handler(options, name.get<std::string>());
    }
  }
  return ParallelismConfig(std::move(options), environment_of(in));
}

json mesh_of(const ParallelismConfig& config) {
  const Mesh mesh(config);
  if (mesh.axes().empty()) return nullptr;
  json names = json::array();
  json shape = json::array();
  for (const MeshAxis axis : mesh.axes()) {
    names.push_back(to_string(axis));
    shape.push_back(mesh.size(axis));
  }
  return {{"dim_names", std::move(names)}, {"shape", std::move(shape)}};
}

json values_of(const ParallelismConfig& config) {
  json handlers = json::array();
  if (config.tp_handler()) handlers.push_back("tp_handler");
  if (config.cp_handler()) handlers.push_back("cp_handler");
  if (config.sp_handler()) handlers.push_back("sp_handler");
  return {{"dp_replicate_size", config.dp_replicate_size()},
          {"dp_shard_size", config.dp_shard_size()},
          {"tp_size", config.tp_size()},
          {"cp_size", config.cp_size()},
          {"cp_backend", config.cp_backend()},
          {"sp_size", config.sp_size()},
          {"sp_backend", config.sp_backend()},
          {"total_size", config.total_size()},
          {"data_parallel_size", config.data_parallel_size()},
          {"non_data_parallel_size", config.non_data_parallel_size()},
          {"dp_dim_names", config.dp_dim_names()},
          {"non_dp_dim_names", config.non_dp_dim_names()},
          {"dp_shard_cp_dim_names", config.dp_shard_cp_dim_names()},
          {"dp_cp_dim_names", config.dp_cp_dim_names()},
          {"fsdp_dim_names", config.fsdp_dim_names()},
          {"active_mesh_dims", config.active_mesh_dims()},
          {"handlers_set", std::move(handlers)},
          {"mesh", mesh_of(config)}};
}

json device_mesh_of(const ParallelismConfig& config) {
  const Mesh mesh(config);
  if (mesh.axes().empty()) return nullptr;
  json ranks = json::array();
  for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
    json coordinates = json::object();
    json groups = json::object();
    for (const MeshAxis axis : values<MeshAxis>()) {
      // HF Accelerate joins no axis with sp, and divides no experts.
      if (axis == MeshAxis::kDpCpSp || axis == MeshAxis::kDpShardCpSp) continue;
      if (axis == MeshAxis::kEp || axis == MeshAxis::kEdp) continue;
      if (mesh.size(axis) == 1) continue;
      coordinates[to_string(axis)] = mesh.coordinate(rank, axis);
      groups[to_string(axis)] = mesh.group(rank, axis);
    }
    ranks.push_back({{"rank", rank},
                     {"coordinate", std::move(coordinates)},
                     {"groups", std::move(groups)},
                     {"dataloader",
                      {{"process_index", mesh.coordinate(rank, MeshAxis::kDp)},
                       {"num_processes", mesh.size(MeshAxis::kDp)}}}});
  }
  return ranks;
}

AcceleratorFacts accelerator_of(const json& in) {
  const json& accelerator = field(in, "accelerator");
  expect_fields(accelerator, {"multi_device", "num_processes", "is_fsdp2", "distributed_type"});
  const std::string type = string_field(accelerator, "distributed_type");
  if (!contains<DistributedType>(type)) throw CaseError("distributed_type: unknown " + type);
  return {.multi_device = bool_field(accelerator, "multi_device"),
          .num_processes = ranks_field(accelerator, "num_processes"),
          .is_fsdp2 = bool_field(accelerator, "is_fsdp2"),
          .distributed_type = from_string<DistributedType>(type)};
}

json run_config(const json& in) {
  expect_fields(in, {"args", "env", "handlers", "accelerator", "build_mesh"});
  ParallelismConfig config = config_of(in);
  json out = values_of(config);
  if (in.contains("build_mesh") && bool_field(in, "build_mesh")) {
    out["device_mesh"] = device_mesh_of(config);
  }
  if (in.contains("accelerator")) {
    const RecordedWarnings warnings;
    config.validate_accelerator(accelerator_of(in));
    out["warnings"] = plain_texts(warnings);
    out["after_validation"] = values_of(config);
  }
  return out;
}

// ---- What a model's own configuration says.

// The model's config.json: the result of get_text_config() is the entry "text_config".
json configuration_of(const json& in) {
  json config = field(in, "config");
  if (config.is_null()) return config;
  expect_fields(config, {"layer_types", "sliding_window", "text", "distributed_config"});
  if (config.contains("text")) {
    config["text_config"] = config["text"];
    config.erase("text");
  }
  if (config.contains("distributed_config") && config["distributed_config"].is_object() &&
      config["distributed_config"].contains("as_dict")) {
    config["distributed_config"] = json(config["distributed_config"]["as_dict"]);
  }
  return config;
}

json run_cp_refusal(const json& in) {
  expect_fields(in, {"kind", "config"});
  check_attention_layers(configuration_of(in), MeshAxis::kCp, "Model");
  throw Missing("the engine of context parallelism");
}

json run_sp_refusal(const json& in) {
  expect_fields(in, {"kind", "config"});
  check_attention_layers(configuration_of(in), MeshAxis::kSp, "Model");
  return {{"ok", true}};
}

json run_model_tp_size(const json& in) {
  expect_fields(in, {"kind", "attribute", "config"});
  const json& attribute = field(in, "attribute");
  std::optional<int64_t> own;
  if (attribute != "absent" && !attribute.is_null()) own = int_field(in, "attribute");
  const std::optional<int64_t> size = get_model_tp_size(own, configuration_of(in));
  return {{"tp_size", size ? json(*size) : json()}};
}

json run_case(const json& in) {
  if (!in.contains("kind")) return in.contains("class") ? run_handler(in) : run_config(in);
  const std::string kind = string_field(in, "kind");
  if (kind == "cp_refusal") return run_cp_refusal(in);
  if (kind == "sp_refusal") return run_sp_refusal(in);
  if (kind == "model_tp_size") return run_model_tp_size(in);
  throw CaseError("unknown kind \"" + kind + "\"");
}

const FamilyRegistration kRegistration("parallelism", &run_case);

}  // namespace
}  // namespace accelerate::golden
