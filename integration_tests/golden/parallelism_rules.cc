#include "integration_tests/golden/rules.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

constexpr char kFamily[] = "parallelism";

bool is_configuration(const json& in) { return !in.contains("class") && !in.contains("kind"); }

// ---- The mesh of sequence parallelism.

bool builds_a_mesh_with_sp(const json& in) {
  if (!is_configuration(in) || !bool_field_or(in, "build_mesh", false)) return false;
  const json& args = field(in, "args");
  return args.contains("sp_size") && int_field(args, "sp_size") > 1;
}

// A mesh as the recorded answer has it: its axes' names and sizes, the innermost last.
struct RecordedMesh {
  std::vector<std::string> names;
  std::vector<int64_t> shape;

  int64_t num_ranks() const {
    int64_t ranks = 1;
    for (const int64_t size : shape) ranks *= size;
    return ranks;
  }

  // A rank's coordinates along all axes.
  std::vector<int64_t> coordinates(int64_t rank) const {
    std::vector<int64_t> coordinates(shape.size());
    for (size_t i = shape.size(); i-- > 0;) {
      coordinates[i] = rank % shape[i];
      rank /= shape[i];
    }
    return coordinates;
  }
};

// The coordinate and the group of a rank along the axes of these names; nothing if the mesh has
// none of them.
void add_axis(const RecordedMesh& mesh, const std::string& name,
              const std::vector<std::string>& parts, json& rank) {
  std::vector<bool> is_part;
  int64_t size = 1;
  for (size_t i = 0; i < mesh.names.size(); ++i) {
    is_part.push_back(std::find(parts.begin(), parts.end(), mesh.names[i]) != parts.end());
    if (is_part[i]) size *= mesh.shape[i];
  }
  if (size == 1) return;
  const std::vector<int64_t> own = mesh.coordinates(rank["rank"].get<int64_t>());
  json group = json::array();
  for (int64_t other = 0; other < mesh.num_ranks(); ++other) {
    const std::vector<int64_t> theirs = mesh.coordinates(other);
    bool is_member = true;
    for (size_t i = 0; i < own.size(); ++i) is_member &= is_part[i] || own[i] == theirs[i];
    if (other == rank["rank"]) rank["coordinate"][name] = group.size();
    if (is_member) group.push_back(other);
  }
  rank["groups"][name] = std::move(group);
}

void build_it(const json& /*in*/, json& out) {
  if (out.contains("error") || !out.at("device_mesh").is_null()) return;
  const RecordedMesh mesh = {out.at("mesh").at("dim_names").get<std::vector<std::string>>(),
                             out.at("mesh").at("shape").get<std::vector<int64_t>>()};
  json ranks = json::array();
  for (int64_t i = 0; i < mesh.num_ranks(); ++i) {
    json rank = {{"rank", i}};
    for (const std::string& name : mesh.names) add_axis(mesh, name, {name}, rank);
    add_axis(mesh, "dp", {"dp_replicate", "dp_shard"}, rank);
    add_axis(mesh, "dp_shard_cp", {"dp_shard", "cp"}, rank);
    add_axis(mesh, "dp_cp", {"dp_replicate", "dp_shard", "cp"}, rank);
    rank["dataloader"] = {{"process_index", rank["coordinate"].value("dp", 0)},
                          {"num_processes", out.at("data_parallel_size")}};
    ranks.push_back(std::move(rank));
  }
  out["device_mesh"] = std::move(ranks);
}

// ---- Handlers.

bool has_handler(const json& in, const std::string& wanted) {
  if (!in.contains("handlers")) return false;
  for (const json& name : field(in, "handlers")) {
    if (name == wanted) return true;
  }
  return false;
}

bool has_a_wrong_handler(const json& in) { return has_handler(in, "cp_handler_wrong"); }

void leave_it_to_the_compiler(const json& /*in*/, json& out) {
  out = {{"refused_by_compiler", true}};
}

constexpr char kIsVariable[] = "PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE";

// Another word for true than "true" itself, where nothing but the variable says so.
bool says_yes_in_other_words(const json& in) {
  if (!in.contains("class") || in["class"] != "DeepSpeedSequenceParallelConfig") return false;
  if (!in.contains("env") || !in["env"].contains(kIsVariable)) return false;
  if (field(in, "args").contains("sp_seq_length_is_variable")) return false;
  const std::string text = absl::AsciiStrToLower(in["env"][kIsVariable].get<std::string>());
  return text == "1" || text == "y" || text == "yes" || text == "t" || text == "on";
}

void take_it_for_true(const json& in, json& out) {
  const json& args = field(in, "args");
  out = {{"fields",
          {{"sp_seq_length", args.value("sp_seq_length", json())},
           {"sp_seq_length_is_variable", true},
           {"sp_attn_implementation", args.value("sp_attn_implementation", json())}}},
         {"warnings", json::array()}};
}

// ---- Replicas whose layers tp divides.

// By argument, or else by variable.
int64_t size_of(const json& in, const std::string& name) {
  const json& args = field(in, "args");
  if (args.contains(name) && !args[name].is_null()) return int_field(args, name.c_str());
  const std::string variable = "PARALLELISM_CONFIG_" + absl::AsciiStrToUpper(name);
  int64_t size = 1;
  if (!in.contains("env") || !in["env"].contains(variable) ||
      !absl::SimpleAtoi(in["env"][variable].get<std::string>(), &size)) {
    return 1;
  }
  return size;
}

bool has_replicas_that_tp_divides(const json& in) {
  return is_configuration(in) && size_of(in, "dp_replicate_size") > 1 &&
         size_of(in, "tp_size") > 1 && size_of(in, "dp_shard_size") == 1 &&
         size_of(in, "cp_size") == 1;
}

json error_of(const std::string& message) {
  return {{"error", {{"type", "ValueError"}, {"message", message}}}};
}

// As HF Accelerate validates any configuration.
void validate_it(const json& in, json& out) {
  const json& accelerator = field(in, "accelerator");
  const bool has_sp = size_of(in, "sp_size") > 1;
  if (!has_sp && accelerator.at("num_processes") != out["total_size"]) {
    out = error_of(absl::StrCat("ParallelismConfig total_size (", out["total_size"].dump(),
                                ") does not match num_processes (",
                                accelerator.at("num_processes").dump(), ")"));
    return;
  }
  const std::string type = string_field(accelerator, "distributed_type");
  if (!bool_field(accelerator, "multi_device") && !bool_field(accelerator, "is_fsdp2") &&
      type != "DEEPSPEED") {
    out = error_of(
        absl::StrCat("ParallelismConfig is only compatible DistributedType.FSDP (version 2) or "
                     "DistributedType.Multi{Device} or DistributedType.DEEPSPEED, but got "
                     "DistributedType.",
                     type, "."));
    return;
  }
  if (bool_field(accelerator, "is_fsdp2")) {
    out = error_of("FSDP is enabled but the parallelism config has no dimension");
    return;
  }
  std::string lines;
  for (const std::string axis : {"cp", "sp"}) {
    if (!has_handler(in, axis + "_handler") || (axis == "sp" && has_sp)) continue;
    absl::StrAppend(&lines, "\nParallelismConfig.", axis, "_handler is set, but ", axis,
                    "_size is set to 1. This handler will be ignored.");
  }
  json after = out;
  after.erase("device_mesh");
  out["warnings"] = json::array();
  if (!lines.empty()) {
    out["warnings"].push_back("ParallelismConfig has the following warnings:" + lines);
  }
  out["after_validation"] = std::move(after);
}

void let_tp_divide_them(const json& in, json& out) {
  constexpr char kRefusal[] = "cannot be used with pure data parallelism";
  if (!out.contains("error") || !absl::StrContains(out["error"].value("message", ""), kRefusal)) {
    return;
  }
  const int64_t replicas = size_of(in, "dp_replicate_size");
  const int64_t tp = size_of(in, "tp_size");
  const int64_t sp = size_of(in, "sp_size");
  json handlers = json::array({"tp_handler"});
  json alike = json::array({"tp"});
  json mesh = {{"dim_names", json::array({"dp_replicate", "tp"})},
               {"shape", json::array({replicas, tp})}};
  if (has_handler(in, "cp_handler")) handlers.push_back("cp_handler");
  if (sp > 1 || has_handler(in, "sp_handler")) handlers.push_back("sp_handler");
  if (sp > 1) {
    alike.push_back("sp");
    mesh = {{"dim_names", json::array({"dp_replicate", "sp", "tp"})},
            {"shape", json::array({replicas, sp, tp})}};
  }
  json all = alike;
  all.insert(all.begin(), "dp_replicate");
  out = {{"dp_replicate_size", replicas},
         {"dp_shard_size", 1},
         {"tp_size", tp},
         {"cp_size", 1},
         {"cp_backend", "torch"},
         {"sp_size", sp},
         {"sp_backend", "deepspeed"},
         {"total_size", replicas * tp * sp},
         {"data_parallel_size", replicas},
         {"non_data_parallel_size", tp * sp},
         {"dp_dim_names", json::array({"dp_replicate"})},
         {"non_dp_dim_names", alike},
         {"dp_shard_cp_dim_names", json::array()},
         {"dp_cp_dim_names", json::array({"dp_replicate"})},
         {"fsdp_dim_names", json::array({"dp_replicate", "dp_shard_cp"})},
         {"active_mesh_dims", all},
         {"handlers_set", handlers},
         {"mesh", mesh}};
  if (bool_field_or(in, "build_mesh", false)) {
    out["device_mesh"] = nullptr;
    build_it(in, out);
  }
  if (in.contains("accelerator")) validate_it(in, out);
}

}  // namespace

std::vector<Decision> parallelism_rules() {
  return {
      {kFamily, "the mesh of sequence parallelism",
       "HF Accelerate leaves the ranks of sequence parallelism to DeepSpeed and builds no mesh; "
       "here sp is an axis like the others",
       &builds_a_mesh_with_sp, &build_it},
      {kFamily, "handlers of the wrong class",
       "HF Accelerate raises an error for a handler of another axis where the axis is on; here "
       "the compiler refuses it",
       &has_a_wrong_handler, &leave_it_to_the_compiler},
      {kFamily, "other words for true",
       "HF Accelerate takes every text but \"true\" for false; here \"1\" and \"yes\" are true as "
       "in every variable",
       &says_yes_in_other_words, &take_it_for_true},
      {kFamily, "replicas that tp divides",
       "HF Accelerate refuses tp with replicas alone, whose gradients its DDP cannot reduce; here "
       "the ranks with one tp coordinate reduce theirs among each other",
       &has_replicas_that_tp_divides, &let_tp_divide_them},
  };
}

}  // namespace accelerate::golden
