#include "integration_tests/golden/rules.h"

#include <algorithm>
#include <regex>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "integration_tests/golden/errors.h"
#include "integration_tests/golden/launch_env_facts.h"
#include "integration_tests/golden/launch_env_flags.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

bool is_launch(const json& in) { return in.at("kind") == "launch"; }

bool is_refused(const json& out) { return out.contains("error"); }

json refusal(const std::string& says) { return our_error({"InvalidArgument"}, {says}); }

bool starts(const json& out, const char* what) {
  return out.contains("starts") && out["starts"] == what;
}

bool is_mpirun(const json& out) {
  return starts(out, "process") && out["cmd"].size() > 1 &&
         (out["cmd"][0] == "mpirun" || out["cmd"][0] == "mpiexec");
}

bool is_deepspeed_line(const json& out) {
  return starts(out, "process") && !out["cmd"].empty() && out["cmd"][0] == "deepspeed";
}

void drop(json& object, std::initializer_list<const char*> names) {
  for (const char* name : names) object.erase(name);
}

std::string capital(bool value) { return value ? "True" : "False"; }

// The notes about settings that neither flags nor a file say.
void note_defaults(const LaunchFacts& facts, json& out) {
  if (facts.has_config()) return;
  const json defaults = {{"num_processes", std::to_string(facts.ranks())},
                         {"num_machines", "1"},
                         {"mixed_precision", "no"},
                         {"dynamo_backend", "no"}};
  for (const auto& [name, value] : defaults.items()) {
    if (!facts.value(name)) out["defaulted"][name] = value;
  }
}

// What every rank is told: the precision, and the compiler that there is none.
json plain_variables(const LaunchFacts& facts) {
  return {{"ACCELERATE_DYNAMO_BACKEND", "NO"},
          {"ACCELERATE_DYNAMO_MODE", "default"},
          {"ACCELERATE_DYNAMO_USE_DYNAMIC", "False"},
          {"ACCELERATE_DYNAMO_USE_FULLGRAPH", "False"},
          {"ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", "False"},
          {"ACCELERATE_MIXED_PRECISION", facts.value("mixed_precision").value_or("no")}};
}

// ---- What a launch shows.

bool lacks_bf16(const json& in) {
  return is_launch(in) && !in.value("machine", json::object()).value("bf16", true);
}

// What one process is started with, which the rules below change like any other.
json one_process(const LaunchFacts& facts) {
  json words = json::array({"python"});
  for (const std::string& word : facts.program()) words.push_back(word);
  json out = {{"starts", "process"}, {"cmd", std::move(words)}, {"env_removed", json::array()}};
  out["env_set"] = plain_variables(facts);
  out["env_set"]["ACCELERATE_USE_CPU"] = capital(facts.is_cpu());
  return out;
}

void leave_precision_to_ranks(const json& in, json& out) {
  const bool is_about_it =
      is_refused(out) &&
      out["error"].value("message", "").starts_with("bf16 mixed precision requires");
  if (is_about_it) out = one_process(LaunchFacts(in));
}

// A precision in capitals is one.
bool is_in_capitals(const std::string& name, const std::string& value) {
  const LaunchFlag& flag = *find_launch_flag(name);
  return !is_value_of(flag, value) && is_value_of(flag, absl::AsciiStrToLower(value));
}

bool has_a_precision_in_capitals(const json& in) {
  if (!is_launch(in)) return false;
  const auto precision = LaunchFacts(in).typed("mixed_precision");
  return precision && is_in_capitals("mixed_precision", *precision);
}

void take_it_for_the_precision(const json& in, json& out) {
  const bool is_about_it =
      is_refused(out) &&
      out["error"].value("message", "").find("--mixed_precision") != std::string::npos;
  if (!is_about_it) return;
  const LaunchFacts facts(in);
  out = one_process(facts);
  out["env_set"]["ACCELERATE_MIXED_PRECISION"] =
      absl::AsciiStrToLower(*facts.typed("mixed_precision"));
  note_defaults(facts, out);
}

void start_programs_as_they_are(const json& in, json& out) {
  if (starts(out, "process")) {
    json words = json::array();
    for (const json& word : out["cmd"]) words.push_back(word);
    const auto python = std::find(words.begin(), words.end(), "python");
    if (python == words.end()) return;
    const bool is_module = std::next(python) != words.end() && *std::next(python) == "-m";
    json result(words.begin(), python);
    if (is_module) {
      result.push_back("accelerate-module");
      result.push_back(LaunchFacts(in).value("main_training_function").value_or("main"));
    }
    for (auto it = python + (is_module ? 2 : 1); it != words.end(); ++it) result.push_back(*it);
    out["cmd"] = result;
  } else if (starts(out, "torchrun")) {
    json& torchrun = out["torchrun"];
    torchrun.erase("no_python");
    if (torchrun.contains("module") && torchrun["module"] == true) {
      json args = {LaunchFacts(in).value("main_training_function").value_or("main"),
                   torchrun["training_script"]};
      for (const json& word : torchrun["training_script_args"]) args.push_back(word);
      torchrun["training_script"] = "accelerate-module";
      torchrun["training_script_args"] = args;
      torchrun.erase("module");
    }
  }
}

void tell_defaults_in_one_note(const json& in, json& out) {
  if (!out.contains("log_warnings") && !out.contains("warnings")) return;
  const json warnings = out.value("log_warnings", json::array());
  drop(out, {"log_warnings", "warnings"});
  if (is_refused(out)) return;
  static const std::regex kDefault("`--([a-z_0-9]+)` was set to a value of `'?([^`']*)'?`");
  for (const json& warning : warnings) {
    const std::string text = warning.get<std::string>();
    for (std::sregex_iterator it(text.begin(), text.end(), kDefault), end; it != end; ++it) {
      out["defaulted"][(*it)[1].str()] = (*it)[2].str();
    }
  }
  if (out.contains("defaulted") && out["defaulted"].contains("num_processes")) {
    out["defaulted"]["num_processes"] = std::to_string(LaunchFacts(in).ranks());
  }
}

// ---- How many ranks, and their rendezvous address.

void start_as_many_ranks_as_asked(const json& in, json& out) {
  const LaunchFacts facts(in);
  if (!out.contains("env_set") || is_mpirun(out) || is_deepspeed_line(out)) return;
  if (!starts(out, "process") && !starts(out, "torchrun")) return;
  json& variables = out["env_set"];
  const int64_t ranks = facts.ranks();
  json words;
  if (starts(out, "process")) {
    words = out["cmd"];
  } else {
    words = json::array({out["torchrun"]["training_script"]});
    for (const json& word : out["torchrun"]["training_script_args"]) words.push_back(word);
  }
  if (ranks == 1) {
    out = {{"starts", "process"},
           {"cmd", words},
           {"env_set", variables},
           {"env_removed", out["env_removed"]},
           {"defaulted", out.value("defaulted", json())}};
    if (out["defaulted"].is_null()) out.erase("defaulted");
    drop(out["env_set"], {"MASTER_ADDR", "MASTER_PORT", "NCCL_P2P_DISABLE", "NCCL_IB_DISABLE"});
    out["env_set"]["ACCELERATE_USE_CPU"] = capital(facts.is_cpu());
    return;
  }
  if (starts(out, "process")) {
    out["starts"] = "torchrun";
    out.erase("cmd");
    json& torchrun = out["torchrun"];
    torchrun["training_script"] = words[0];
    torchrun["training_script_args"] = json(words.begin() + 1, words.end());
    if (facts.machines() > 1) {
      torchrun["nnodes"] = std::to_string(facts.machines());
      torchrun["master_addr"] = facts.value("main_process_ip").value_or("");
      if (const int64_t rank = facts.number("machine_rank", 0)) torchrun["node_rank"] = rank;
    }
    torchrun["master_port"] = std::to_string(facts.number("main_process_port", 29500));
    for (const char* name : {"rdzv_backend", "rdzv_conf", "role", "log_dir", "tee"}) {
      const auto value = facts.value(name);
      if (value && *value != "static" && *value != "default" && *value != "0") {
        torchrun[name] = *value;
      }
    }
    if (facts.number("max_restarts", 0) > 0) {
      torchrun["max_restarts"] = facts.number("max_restarts", 0);
    }
    drop(variables, {"MASTER_ADDR", "MASTER_PORT", "ACCELERATE_USE_CPU"});
  }
  out["torchrun"]["nproc_per_node"] = std::to_string(ranks / facts.machines());
  if (ranks / facts.machines() == 1) out["torchrun"].erase("nproc_per_node");
  if (facts.is_cpu()) variables["ACCELERATE_USE_CPU"] = "True";
  if (!out["torchrun"].contains("node_rank") || out["torchrun"]["node_rank"] == 0) {
    out["torchrun"].erase("node_rank");
  }
}

bool is_in_use(const json& in, int64_t port) {
  const json ports = in.value("machine", json::object()).value("ports_in_use", json::array());
  return std::find(ports.begin(), ports.end(), json(port)) != ports.end();
}

// The port that is free on the recorded machine.
constexpr char kFreePort[] = "45678";

// The rendezvous address is the same however it is called.
void meet_at_one_place(const json& in, json& out) {
  const LaunchFacts facts(in);
  if (facts.value("mpirun_hostfile") && facts.machines() == 1 && out.contains("env_set") &&
      out["env_set"].contains("MASTER_PORT")) {
    const int64_t port = facts.number("main_process_port", 0);
    if (port == 0 || is_in_use(in, port)) out["env_set"]["MASTER_PORT"] = kFreePort;
  }
  if (!starts(out, "torchrun")) return;
  json& torchrun = out["torchrun"];
  if (torchrun.contains("rdzv_endpoint")) {
    const std::string endpoint = torchrun["rdzv_endpoint"].get<std::string>();
    torchrun["master_addr"] = endpoint.substr(0, endpoint.rfind(':'));
    torchrun["master_port"] = endpoint.substr(endpoint.rfind(':') + 1);
    torchrun.erase("rdzv_endpoint");
  }
  if (torchrun.contains("rdzv_backend")) torchrun.erase("node_rank");
  if (facts.machines() > 1) return;
  torchrun.erase("standalone");
  const int64_t port = facts.number("main_process_port", 0);
  if (port == 0 || is_in_use(in, port)) {
    torchrun.erase("master_port");
  } else {
    torchrun["master_port"] = std::to_string(port);
  }
}

void give_each_rank_its_share_of_cores(const json& in, json& out) {
  if (!out.contains("env_set")) return;
  const LaunchFacts facts(in);
  json& variables = out["env_set"];
  if (facts.value("num_cpu_threads_per_process")) return;
  variables.erase("OMP_NUM_THREADS");
  const json environment = in.value("env", json::object());
  if (facts.ranks() == 1 || environment.contains("OMP_NUM_THREADS")) return;
  int64_t local = facts.ranks() / facts.machines();
  if (!facts.is_cpu()) {
    if (local > 1) variables["OMP_NUM_THREADS"] = "1";
    return;
  }
  for (const char* name :
       {"MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"}) {
    if (!environment.contains(name)) continue;
    local = std::stoll(environment[name].get<std::string>());
    break;
  }
  const int64_t cores = in.contains("machine") ? in["machine"].value("physical_cores", 8) : 8;
  variables["OMP_NUM_THREADS"] = std::to_string(std::max<int64_t>(1, cores / local));
}

void place_threads_where_they_fit(const json& in, json& out) {
  if (!out.contains("env_set")) return;
  const LaunchFacts facts(in);
  const bool has_cores_of_its_own =
      facts.ranks() <= facts.machines() || facts.value("mpirun_hostfile").has_value();
  const json environment = in.value("env", json::object());
  for (const char* name : {"KMP_AFFINITY", "KMP_BLOCKTIME"}) {
    if (!has_cores_of_its_own || environment.contains(name)) out["env_set"].erase(name);
  }
}

void hand_variables_on_with_mpirun(const json& in, json& out) {
  if (!is_mpirun(out)) return;
  const LaunchFacts facts(in);
  json& variables = out["env_set"];
  if (facts.ranks() > 1) {
    variables.erase("ACCELERATE_USE_CPU");
    if (facts.is_cpu()) variables["ACCELERATE_USE_CPU"] = "True";
  }
  auto place = std::find(out["cmd"].begin(), out["cmd"].end(), "socket");
  if (place == out["cmd"].end()) return;
  json words(out["cmd"].begin(), place + 1);
  std::vector<std::string> names;
  for (const auto& [name, value] : variables.items()) names.push_back(name);
  const json environment = in.value("env", json::object());
  for (const auto& [name, value] : environment.items()) {
    if (name == "OMP_NUM_THREADS") continue;
    for (const LaunchFlag& row : launch_flags()) {
      if (row.variable != nullptr && name == row.variable) names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    words.push_back("-x");
    words.push_back(name);
  }
  for (auto it = place + 1; it != out["cmd"].end(); ++it) words.push_back(*it);
  out["cmd"] = words;
}

// HF Accelerate takes a file's value only for flags without a default.
void heed_the_file(const json& in, json& out) {
  if (!out.contains("env_set")) return;
  const LaunchFacts facts(in);
  json& variables = out["env_set"];
  if (facts.is_on("enable_cpu_affinity")) variables["ACCELERATE_CPU_AFFINITY"] = "1";
  if (variables.contains("ACCELERATE_FP8_AMAX_HISTORY_LENGTH")) {
    variables["ACCELERATE_FP8_AMAX_HISTORY_LEN"] = variables["ACCELERATE_FP8_AMAX_HISTORY_LENGTH"];
    variables.erase("ACCELERATE_FP8_AMAX_HISTORY_LENGTH");
  }
  const auto rendezvous = facts.value("rdzv_backend");
  if (starts(out, "torchrun") && rendezvous && *rendezvous != "static") {
    out["torchrun"]["rdzv_backend"] = *rendezvous;
  }
}

// ---- Engines.

bool uses_deepspeed(const json& in) {
  return is_launch(in) && LaunchFacts(in).uses("use_deepspeed", "DEEPSPEED");
}

void start_zero_without_deepspeed(const json& in, json& out) {
  const LaunchFacts facts(in);
  const bool is_missing = is_refused(out) && out["error"].value("type", "") == "ImportError";
  if (!is_missing) return;
  out = {{"starts", "torchrun"}, {"env_removed", json::array()}};
  out["env_set"] = {{"ACCELERATE_MIXED_PRECISION", facts.value("mixed_precision").value_or("no")},
                    {"ACCELERATE_USE_DEEPSPEED", "true"},
                    {"ACCELERATE_CONFIG_DS_FIELDS", ""}};
  for (const LaunchFlag& row : launch_flags()) {
    if (row.place != FlagPlace::kDeepSpeed || row.variable == nullptr) continue;
    if (const auto value = facts.value(row.name)) out["env_set"][row.variable] = *value;
  }
  out["torchrun"] = {{"training_script", facts.program()[0]},
                     {"training_script_args", std::vector<std::string>(facts.program().begin() + 1,
                                                                       facts.program().end())}};
  note_defaults(facts, out);
}

void tell_zero_what_others_are_told(const json& in, json& out) {
  if (!out.contains("env_set")) return;
  const LaunchFacts facts(in);
  json& variables = out["env_set"];
  variables.erase("PYTHONPATH");
  for (const LaunchFlag& row : launch_flags()) {
    if (row.place != FlagPlace::kDynamo) continue;
    std::string value = facts.value(row.name).value_or(row.default_value);
    if (row.kind == FlagKind::kFlag) value = capital(facts.is_on(row.name));
    if (std::string(row.name) == "dynamo_backend") {
      std::transform(value.begin(), value.end(), value.begin(), ::toupper);
    }
    variables[row.variable] = value;
  }
  for (const char* kind : {"OPTIMIZER", "PARAM"}) {
    std::string name = kind;
    std::transform(name.begin(), name.end(), name.begin(), ::tolower);
    if (const auto path = facts.value("offload_" + name + "_nvme_path")) {
      variables["ACCELERATE_DEEPSPEED_OFFLOAD_" + std::string(kind) + "_NVME_PATH"] = *path;
    }
  }
  if (in.contains("machine") && in["machine"].value("p2p", true) == false && facts.ranks() > 1) {
    for (const char* name : {"NCCL_P2P_DISABLE", "NCCL_IB_DISABLE"}) {
      if (!in.value("env", json::object()).contains(name)) variables[name] = "1";
    }
  }
  if (!is_deepspeed_line(out)) return;
  json words = json::array();
  for (const json& word : out["cmd"]) {
    if (word == "--module" || word == "--no_python") continue;
    if (word == facts.program()[0]) {
      words.push_back("--no_python");
      if (facts.typed("module")) {
        words.push_back("accelerate-module");
        words.push_back(facts.value("main_training_function").value_or("main"));
      }
    }
    words.push_back(word == "None" ? json("pdsh") : word);
  }
  out["cmd"] = words;
  out = {{"starts", "process"},
         {"cmd", out["cmd"]},
         {"env_set", variables},
         {"env_removed", out.value("env_removed", json::array())},
         {"defaulted", out.value("defaulted", json())}};
  if (out["defaulted"].is_null()) out.erase("defaulted");
}

void write_truth_values_alike(const json& in, json& out) {
  if (!out.contains("env_set")) return;
  const LaunchFacts facts(in);
  for (auto& [name, value] : out["env_set"].items()) {
    if (name.starts_with("ACCELERATE_FP8_OVERRIDE_") && value.is_string() &&
        value.get<std::string>().size() == 1) {
      value = capital(value == "1");
    }
    const bool is_number = name == "ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER" ||
                           name == "ACCELERATE_FP8_PAD_INNER_DIM";
    if (is_number && value == "True") value = "1";
    if (is_number && value == "False") value = "0";
    if (name == "ACCELERATE_FP8_BACKEND") {
      value = absl::AsciiStrToLower(value.get<std::string>());
    }
    if (name == "ACCELERATE_FP8_USE_AUTOCAST_DURING_EVAL") {
      value = capital(facts.is_on("fp8_use_autocast_during_eval"));
    }
    if (name == "PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE") {
      value = capital(facts.is_on("parallelism_config_sp_seq_length_is_variable", true));
    }
    for (const LaunchFlag& row : launch_flags()) {
      const bool is_truth = row.place == FlagPlace::kMegatron && row.kind == FlagKind::kBool;
      if (is_truth && name == row.variable) value = facts.is_on(row.name) ? "true" : "false";
    }
  }
  if (out["env_set"].value("PARALLELISM_CONFIG_SP_SEQ_LENGTH", "") == "None") {
    out["env_set"].erase("PARALLELISM_CONFIG_SP_SEQ_LENGTH");
  }
}

// ---- TPUs and SageMaker.

bool is_tpu(const json& in) { return is_launch(in) && LaunchFacts(in).uses("tpu", "XLA"); }

void start_ranks_on_tpus(const json& in, json& out) {
  const LaunchFacts facts(in);
  // A rank finds its function when it runs.
  const bool lacks_function =
      is_refused(out) &&
      out["error"].value("message", "").starts_with("Your training script should have a function");
  const bool is_contradiction = is_refused(out) && !lacks_function &&
                                out["error"].value("type", "") == "ValueError" &&
                                !facts.typed("no_python");
  if (is_contradiction || (facts.typed("module") && facts.typed("no_python"))) return;
  const bool has_tpu =
      in.contains("machine") && in["machine"].contains("tpu") && in["machine"]["tpu"] != false;
  const json recorded = out.value("env_set", json::object());
  if (!has_tpu) {
    out = refusal("this machine has no TPU");
  } else if (facts.is_on("tpu_use_cluster")) {
    const bool is_named = facts.value("tpu_name") || facts.value("vm");
    out = is_named ? json({{"starts", "tpu pod"}}) : refusal("which TPU pod?");
  } else {
    out = {{"starts", "tpu ranks"},
           {"nproc_per_node", facts.ranks() / facts.machines()},
           {"cmd", facts.program()},
           {"env_set", plain_variables(facts)},
           {"env_removed", json::array()}};
    out["env_set"]["ACCELERATE_TORCH_DEVICE"] = "xla";
    if (facts.value("mixed_precision").value_or("no") == "bf16") {
      const bool downcasts = recorded.contains("XLA_DOWNCAST_BF16");
      out["env_set"][downcasts ? "XLA_DOWNCAST_BF16" : "XLA_USE_BF16"] = "1";
    }
    if (facts.ranks() == 1) out["env_set"]["ACCELERATE_USE_CPU"] = "False";
    give_each_rank_its_share_of_cores(in, out);
    note_defaults(facts, out);
  }
}

bool is_sagemaker(const json& in) {
  return is_launch(in) && LaunchFacts(in).config().find("AMAZON_SAGEMAKER") != std::string::npos;
}

void write_the_job_of_sagemaker(const json& in, json& out) {
  const LaunchFacts facts(in);
  if (facts.config().find("image_uri:") == std::string::npos || !facts.value("image_uri")) {
    out = refusal("has no image_uri");
    return;
  }
  const std::vector<std::string>& words = facts.program();
  out = {{"starts", "sagemaker"},
         {"image", *facts.value("image_uri")},
         {"cmd", {"accelerate", "launch", words[0]}},
         {"args", std::vector<std::string>(words.begin() + 1, words.end())},
         {"role", facts.value("iam_role_name").value_or("")},
         {"instance", facts.value("ec2_instance_type").value_or("")},
         {"instances", facts.machines()},
         {"hyperparameters", json::object()},
         {"env_set", plain_variables(facts)}};
  for (size_t i = 1; i + 1 < words.size(); i += 2) {
    std::string name = words[i].substr(words[i].find_first_not_of('-'));
    std::replace(name.begin(), name.end(), '-', '_');
    std::string value = words[i + 1];
    if (value == "True" || value == "False") value = absl::AsciiStrToLower(value);
    out["hyperparameters"][name] = value;
  }
  out["env_set"]["ACCELERATE_USE_CPU"] = capital(facts.is_cpu());
  out["env_set"]["ACCELERATE_USE_SAGEMAKER"] = "true";
  out["env_set"]["ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE"] = facts.config_type();
}

// ---- What only we refuse.

bool has_a_bad_value(const json& in) {
  if (!is_launch(in)) return false;
  const LaunchFacts facts(in);
  for (const auto& [name, value] : facts.all_typed()) {
    if (!is_value_of(*find_launch_flag(name), value) && !is_in_capitals(name, value)) return true;
  }
  return false;
}

bool cannot_be_spread(const json& in) {
  if (!is_launch(in)) return false;
  const LaunchFacts facts(in);
  const bool is_none = facts.typed("num_processes") && facts.number("num_processes", 1) < 1;
  return is_none || facts.machines() < 1 || facts.ranks() % std::max<int64_t>(1, facts.machines());
}

bool does_not_say_where_machines_meet(const json& in) {
  if (!is_launch(in)) return false;
  const LaunchFacts facts(in);
  if (facts.machines() < 2 || is_sagemaker(in) || is_tpu(in)) return false;
  const bool is_deepspeeds =
      uses_deepspeed(in) && facts.value("deepspeed_multinode_launcher") != "standard";
  if (is_deepspeeds) return !facts.value("deepspeed_hostfile");
  if (facts.value("mpirun_hostfile")) return !facts.value("main_process_ip");
  const bool is_static = facts.value("rdzv_backend").value_or("static") == "static";
  return !facts.value("main_process_ip") ||
         (is_static && !facts.value("machine_rank") &&
          facts.config().find("machine_rank") == std::string::npos) ||
         facts.number("main_process_port", 1) == 0;
}

bool loads_on_one_rank_only(const json& in) {
  if (!is_launch(in)) return false;
  const LaunchFacts facts(in);
  return facts.uses("use_fsdp", "FSDP") && facts.is_on("fsdp_cpu_ram_efficient_loading", true) &&
         !facts.is_on("fsdp_sync_module_states", true);
}

bool names_one_device_for_many(const json& in) {
  if (!is_launch(in)) return false;
  const LaunchFacts facts(in);
  const std::string ids = facts.value("gpu_ids").value_or("all");
  return facts.typed("multi_gpu") && facts.machines() == 1 && ids != "all" &&
         ids.find(',') == std::string::npos;
}

bool has_an_unknown_rendezvous(const json& in) {
  if (!is_launch(in)) return false;
  const std::string backend = LaunchFacts(in).value("rdzv_backend").value_or("static");
  return backend != "static" && backend != "c10d";
}

// Says one of the words. What HF Accelerate refuses as well stays as it was recorded.
template <const char* const... kSays>
void refuse(const json& /*in*/, json& out) {
  expect_our_error(out, {"InvalidArgument"}, {kSays...});
}

constexpr char kExpected[] = "expected ";
constexpr char kUneven[] = "cannot be divided evenly over";
constexpr char kNoNumber[] = "is not a whole number from";
constexpr char kNoPlace[] = "need a rendezvous address";
constexpr char kNoRank[] = "give --machine_rank";
constexpr char kAnyPort[] = "port 0 means any free one";
constexpr char kNoHosts[] = "need --deepspeed_hostfile";
constexpr char kNobodyShares[] = "needs fsdp_sync_module_states";
constexpr char kOneDevice[] = "need at least two devices";
constexpr char kRendezvous[] = "expected static, or c10d";

}  // namespace

std::vector<Decision> launch_env_rules() {
  static constexpr char kFamily[] = "launch_env";
  std::vector<Decision> rules = {
      {kFamily, "precision_left_to_ranks",
       "HF Accelerate asks the device for bfloat16 beside a configuration file; our launcher asks "
       "no driver, and a rank refuses what its device does not compute in.",
       &lacks_bf16, &leave_precision_to_ranks},
      {kFamily, "precision_in_capitals",
       "HF Accelerate refuses a precision in capitals; we take it for the precision.",
       &has_a_precision_in_capitals, &take_it_for_the_precision},
      {kFamily, "programs_not_scripts",
       "HF Accelerate starts Python with a script; we start a program, or load a shared object.",
       &is_launch, &start_programs_as_they_are},
      {kFamily, "zero_without_deepspeed",
       "HF Accelerate needs DeepSpeed installed; our ZeRO engine is our own.", &uses_deepspeed,
       &start_zero_without_deepspeed},
      {kFamily, "defaults_in_one_note",
       "HF Accelerate logs a warning of several lines; we tell the same in one note.", &is_launch,
       &tell_defaults_in_one_note},
      {kFamily, "zero_is_told_the_same",
       "HF Accelerate does not tell DeepSpeed runs about the compiler, devices without peer access "
       "and NVMe paths; we tell all runs the same, and do not set PYTHONPATH.",
       &uses_deepspeed, &tell_zero_what_others_are_told},
      {kFamily, "as_many_ranks_as_asked",
       "HF Accelerate starts one process where no accelerator is, however many are asked for; we "
       "start as many CPU ranks.",
       &is_launch, &start_as_many_ranks_as_asked},
      {kFamily, "files_count",
       "HF Accelerate ignores a file's enable_cpu_affinity and rdzv_backend, whose flags have "
       "defaults, and hands fp8_config's amax_history_length on as a variable that nothing reads; "
       "what a file says counts here.",
       &is_launch, &heed_the_file},
      {kFamily, "one_place_to_meet",
       "HF Accelerate takes port 29500 on one machine; we take any free one and keep it, and call "
       "the rendezvous address by one name.",
       &is_launch, &meet_at_one_place},
      {kFamily, "shares_of_cores",
       "HF Accelerate sets OMP_NUM_THREADS=1 for a single process; we limit threads only where "
       "ranks share a machine.",
       &is_launch, &give_each_rank_its_share_of_cores},
      {kFamily, "threads_where_they_fit",
       "HF Accelerate puts all ranks of a machine on the same cores by KMP_AFFINITY, and replaces "
       "the caller's; we set it for a rank that has its machine to itself, where the caller does "
       "not.",
       &is_launch, &place_threads_where_they_fit},
      {kFamily, "mpirun_hands_variables_on",
       "HF Accelerate's variables do not reach other machines under Open MPI; we name them with "
       "-x.",
       &is_launch, &hand_variables_on_with_mpirun},
      {kFamily, "truth_values_alike",
       "HF Accelerate writes truth values in several ways, and reads any text as true; we write "
       "each variable in one way, as it was meant.",
       &is_launch, &write_truth_values_alike},
      {kFamily, "ranks_on_tpus",
       "HF Accelerate spawns a Python function on each core; we start ranks, or the worker's line.",
       &is_tpu, &start_ranks_on_tpus},
      {kFamily, "sagemaker_job",
       "HF Accelerate needs its Python SDK, and refuses files with distributed_type NO; we write "
       "the job, for which a container image has to be named.",
       &is_sagemaker, &write_the_job_of_sagemaker},
      {kFamily, "values_are_checked",
       "HF Accelerate hands on any text; we refuse what means nothing.", &has_a_bad_value,
       &refuse<kExpected>},
      {kFamily, "ranks_spread_evenly",
       "HF Accelerate loses the remainder of ranks over machines; we refuse it.", &cannot_be_spread,
       &refuse<kUneven, kNoNumber>},
      {kFamily, "machines_know_where_to_meet",
       "HF Accelerate starts machines that cannot find one another; we refuse and say what to "
       "give.",
       &does_not_say_where_machines_meet, &refuse<kNoPlace, kNoRank, kAnyPort, kNoHosts>},
      {kFamily, "weights_of_one_rank_are_shared",
       "HF Accelerate takes the text false for true; we see that the weights would reach nobody.",
       &loads_on_one_rank_only, &refuse<kNobodyShares>},
      {kFamily, "devices_are_checked",
       "HF Accelerate checks the number of device ids only beside a configuration file; we always "
       "do.",
       &names_one_device_for_many, &refuse<kOneDevice>},
      {kFamily, "known_rendezvous", "HF Accelerate hands any name on; we have static and c10d.",
       &has_an_unknown_rendezvous, &refuse<kRendezvous>},
  };
  const std::vector<Decision> of_files = launch_file_rules();
  rules.insert(rules.end(), of_files.begin(), of_files.end());
  return rules;
}

}  // namespace accelerate::golden
