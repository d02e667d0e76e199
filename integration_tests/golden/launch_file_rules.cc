// Launches: configuration files, and the lists of keys and flags.
#include <algorithm>
#include <regex>
#include <string>
#include <vector>

#include "integration_tests/golden/errors.h"
#include "integration_tests/golden/launch_env_flags.h"
#include "integration_tests/golden/rules.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

bool is_refused(const json& out) { return out.contains("error"); }

bool is_config_load(const json& in) { return in.at("kind") == "config_load"; }

bool has_unquoted_no(const json& in) {
  static const std::regex kNo("(^|\n)distributed_type: *(NO|No|no)( |\n|$)");
  return is_config_load(in) && std::regex_search(in["text"].get<std::string>(), kNo);
}

void take_it_for_the_word(const json& in, json& out) {
  if (is_refused(out) || out["fields"]["distributed_type"] != false) return;
  out["fields"]["distributed_type"] = "NO";
  std::string yaml = out["rewritten_yaml"].get<std::string>();
  yaml = std::regex_replace(yaml, std::regex("distributed_type: false"), "distributed_type: 'NO'");
  if (in["text"].get<std::string>().find("num_processes") == std::string::npos) {
    out["fields"]["num_processes"] = 1;
    yaml = std::regex_replace(yaml, std::regex("num_processes: -1"), "num_processes: 1");
  }
  out["rewritten_yaml"] = yaml;
}

bool has_a_bad_precision(const json& in) {
  if (!is_config_load(in)) return false;
  std::smatch found;
  const std::string text = in["text"].get<std::string>();
  static const std::regex kKey("mixed_precision['\"]?: *['\"]?([a-zA-Z0-9]+)");
  if (!std::regex_search(text, found, kKey)) return false;
  return !is_value_of(*find_launch_flag("mixed_precision"), found[1].str()) &&
         found[1] != "false" && found[1] != "null";
}

void refuse(const json& /*in*/, json& out) {
  expect_our_error(out, {"InvalidArgument"}, {"mixed_precision: expected one of"});
}

bool is_write_basic_config(const json& in) { return in.at("kind") == "write_basic_config"; }

// The recorded text, whatever the field is called.
void write_yaml_into_yaml(const json& in, json& out) {
  if (is_refused(out)) {
    out = {{"error", out["error"]}};
    return;
  }
  if (in.value("file_exists", false)) {
    out = {{"written", false}};
    return;
  }
  json fields;
  for (const auto& [name, value] : out.items()) {
    json parsed = value;
    if (value.is_string()) parsed = json::parse(value.get<std::string>(), nullptr, false);
    if (parsed.is_object() && parsed.contains("compute_environment")) fields = parsed;
  }
  if (fields.is_null()) return;
  // A file leaves out what is nothing.
  const json nothing = {{"gpu_ids", nullptr},
                        {"main_process_ip", nullptr},
                        {"main_process_port", nullptr},
                        {"tpu_name", nullptr},
                        {"tpu_zone", nullptr},
                        {"command_file", nullptr},
                        {"commands", nullptr},
                        {"tpu_vm", nullptr},
                        {"tpu_env", nullptr},
                        {"fp8_config", json::object()},
                        {"deepspeed_config", json::object()},
                        {"fsdp_config", json::object()},
                        {"parallelism_config", json::object()},
                        {"megatron_lm_config", json::object()},
                        {"mpirun_config", json::object()},
                        {"dynamo_config", json::object()}};
  for (const auto& [name, value] : nothing.items()) {
    if (!fields.contains(name)) fields[name] = value;
  }
  out = {{"written", true}, {"fields", fields}};
}

bool is_config_keys(const json& in) { return in.at("kind") == "config_keys"; }

void list_keys(const json& /*in*/, json& out) {
  std::vector<std::string> names;
  for (const auto& [name, meaning] : out["keys"].items()) names.push_back(name);
  std::sort(names.begin(), names.end());
  out = {{"keys", names}};
}

bool is_parser_flags(const json& in) { return in.at("kind") == "parser_flags"; }

// One row a setting; strict booleans and choices where HF Accelerate takes any text.
void list_flags_by_setting(const json& /*in*/, json& out) {
  json result = json::object();
  for (const json& flag : out["flags"]) {
    const std::string name = flag["dest"].get<std::string>();
    if (flag["flags"].empty() || name == "help") continue;
    json& row = result[name];
    row["takes_value"] = flag["takes_value"];
    for (const json& spelling : flag["flags"]) {
      const std::string text = spelling.get<std::string>();
      if (text.find('-', 2) == std::string::npos) row["names"].push_back(text);
    }
    std::sort(row["names"].begin(), row["names"].end());
    row["number"] = flag["type"] == "int" || flag["type"] == "float" ? flag["type"] : json("no");
    if (row.contains("default")) continue;
    const json& value = flag["default"];
    row["default"] = value.is_string() ? value : value.is_null() ? json() : json(value.dump());
    if (value == "") row["default"] = nullptr;
    if (value.is_array()) row["default"] = "false,false,false";
    row["choices"] = flag["choices"].is_null() ? json::array() : flag["choices"];
    if (flag["takes_value"] == false) row["default"] = "false";
  }
  for (const char* name : {"mixed_precision", "dynamo_backend"}) result[name]["default"] = "no";
  for (const char* name : {"offload_optimizer_device", "offload_param_device"}) {
    result[name]["choices"] = {"none", "cpu", "nvme"};
  }
  result["dynamo_backend"]["choices"] = {"no",
                                         "eager",
                                         "aot_eager",
                                         "inductor",
                                         "aot_ts_nvfuser",
                                         "nvprims_nvfuser",
                                         "cudagraphs",
                                         "ofi",
                                         "fx2trt",
                                         "onnxrt",
                                         "tensorrt",
                                         "aot_torchxla_trace_once",
                                         "torchxla_trace_once",
                                         "ipex",
                                         "tvm",
                                         "hpu_backend",
                                         "neuron",
                                         "torhchxla_trace_once"};
  result["dynamo_mode"]["choices"].push_back("max-autotune-no-cudagraphs");
  result["zero_stage"]["choices"] = {"0", "1", "2", "3"};
  result["deepspeed_multinode_launcher"]["choices"] = {"pdsh",  "standard", "openmpi", "mvapich",
                                                       "mpich", "nossh",    "slurm"};
  out = {{"flags", result}};
}

}  // namespace

std::vector<Decision> launch_file_rules() {
  static constexpr char kFamily[] = "launch_env";
  return {
      {kFamily, "unquoted_no", "YAML reads an unquoted NO as false; we take it for the word.",
       &has_unquoted_no, &take_it_for_the_word},
      {kFamily, "precision_in_files_is_checked",
       "HF Accelerate loads a precision that there is not; we refuse it.", &has_a_bad_precision,
       &refuse},
      {kFamily, "yaml_in_yaml_files",
       "HF Accelerate writes JSON into a .yaml file; we write YAML, with the same fields.",
       &is_write_basic_config, &write_yaml_into_yaml},
      {kFamily, "keys_by_name", "Meanings are HF Accelerate's words; the keys are the same.",
       &is_config_keys, &list_keys},
      {kFamily, "flags_by_setting",
       "HF Accelerate takes any text for truth values and some choices, and lacks names of "
       "compilers or misspells them; we name the choices.",
       &is_parser_flags, &list_flags_by_setting},
  };
}

}  // namespace accelerate::golden
