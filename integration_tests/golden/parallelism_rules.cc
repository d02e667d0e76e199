#include "integration_tests/golden/rules.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

constexpr char kFamily[] = "parallelism";

// ---- The mesh of sequence parallelism.

bool builds_a_mesh_with_sp(const json& in) {
  if (in.contains("class") || !bool_field_or(in, "build_mesh", false)) return false;
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

bool has_a_wrong_handler(const json& in) {
  if (!in.contains("handlers")) return false;
  for (const json& name : field(in, "handlers")) {
    if (name == "cp_handler_wrong") return true;
  }
  return false;
}

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
  };
}

}  // namespace accelerate::golden
