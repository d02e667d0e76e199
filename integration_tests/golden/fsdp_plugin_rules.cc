#include <algorithm>
#include <cstdint>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "integration_tests/golden/errors.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/launch_env_flags.h"
#include "integration_tests/golden/rules.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

constexpr char kFamily[] = "fsdp_plugin";

bool is_kind(const json& in, const char* kind) { return in.at("kind") == kind; }

// ---- What a plugin is given.

json argument(const json& in, const char* name) {
  const char* const place = is_kind(in, "plugin") ? "kwargs" : "plugin";
  return in.contains(place) ? in[place].value(name, json()) : json();
}

std::string variable(const json& in, const char* name) {
  return in.contains("env") ? in["env"].value(name, "") : "";
}

// By argument, or else by variable.
int64_t version_of(const json& in) {
  const json given = argument(in, "fsdp_version");
  if (given.is_number_integer()) return given;
  int64_t version = 1;
  const std::string text = variable(in, "FSDP_VERSION");
  return text.empty() || absl::SimpleAtoi(text, &version) ? version : 0;
}

bool is_flag(const json& in, const char* argument_name, const char* variable_name) {
  const json given = argument(in, argument_name);
  if (given.is_boolean()) return given;
  const std::string text = absl::AsciiStrToLower(variable(in, variable_name));
  return text == "true" || text == "1" || text == "yes";
}

bool is_plugin(const json& in) { return is_kind(in, "plugin"); }

bool says(const json& out, const std::string& words) {
  return out.contains("error") && absl::StrContains(out["error"].value("message", ""), words);
}

json enum_json(const std::string& type, const std::string& name) {
  return {{"$enum", type + "." + name}};
}

json strategy_json(int64_t number) {
  const char* const names[] = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD",
                               "HYBRID_SHARD_ZERO2"};
  return enum_json("ShardingStrategy", names[number - 1]);
}

// A strategy by its number, name or member, as a member; null for none.
json strategy_of(const json& given) {
  if (given.is_object()) return given;
  int64_t number = 0;
  if (given.is_number_integer()) number = given;
  if (given.is_string()) {
    std::string text = absl::AsciiStrToUpper(given.get<std::string>());
    if (text == "_HYBRID_SHARD_ZERO2") text.erase(0, 1);
    if (!absl::SimpleAtoi(text, &number)) {
      const bool is_known = text == "FULL_SHARD" || text == "SHARD_GRAD_OP" || text == "NO_SHARD" ||
                            text == "HYBRID_SHARD" || text == "HYBRID_SHARD_ZERO2";
      return is_known ? enum_json("ShardingStrategy", text) : json();
    }
  }
  return number >= 1 && number <= 5 ? strategy_json(number) : json();
}

// What HF Accelerate would have recorded in place of an error: the defaults, and the arguments and
// variables that are flags.
void accept(const json& in, json& out) {
  const bool is_first = version_of(in) == 1;
  json fields = {{"fsdp_version", version_of(in)}, {"limit_all_gathers", true}};
  const json kind = enum_json("StateDictType", is_first ? "FULL_STATE_DICT" : "SHARDED_STATE_DICT");
  fields["state_dict_type"] = kind;
  for (const std::string prefix : {"", "Optim"}) {
    const std::string name = prefix.empty() ? "state_dict_config" : "optim_state_dict_config";
    fields[name] = {{"$object", (is_first ? "Full" : "Sharded") + prefix + "StateDictConfig"},
                    {"offload_to_cpu", true}};
    if (is_first) fields[name]["rank0_only"] = true;
  }
  const bool offloads = is_flag(in, "cpu_offload", "FSDP_OFFLOAD_PARAMS");
  if (is_first) {
    fields["cpu_offload"] = {{"$object", "CPUOffload"}, {"offload_params", offloads}};
    fields["sharding_strategy"] = strategy_json(1);
    fields["use_orig_params"] = is_flag(in, "use_orig_params", "FSDP_USE_ORIG_PARAMS");
    fields["forward_prefetch"] = is_flag(in, "forward_prefetch", "FSDP_FORWARD_PREFETCH");
    fields["sync_module_states"] =
        is_flag(in, "sync_module_states", "FSDP_SYNC_MODULE_STATES") ||
        is_flag(in, "cpu_ram_efficient_loading", "FSDP_CPU_RAM_EFFICIENT_LOADING");
  } else {
    fields["cpu_offload"] = {{"$object", offloads ? "CPUOffloadPolicy" : "OffloadPolicy"}};
    if (offloads) fields["cpu_offload"]["pin_memory"] = true;
    fields["reshard_after_forward"] = true;
  }
  fields["activation_checkpointing"] =
      is_flag(in, "activation_checkpointing", "FSDP_ACTIVATION_CHECKPOINTING");
  fields["activation_checkpointing_offload"] =
      is_flag(in, "activation_checkpointing_offload", "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD");
  fields["cpu_ram_efficient_loading"] =
      is_flag(in, "cpu_ram_efficient_loading", "FSDP_CPU_RAM_EFFICIENT_LOADING");
  out.erase("error");
  out["fields"] = fields;
  out["env_after"] = json::object();
  const json loading = argument(in, "cpu_ram_efficient_loading");
  if (loading.is_boolean()) {
    const std::string text = loading.get<bool>() ? "True" : "False";
    if (variable(in, "FSDP_CPU_RAM_EFFICIENT_LOADING") != text) {
      out["env_after"]["FSDP_CPU_RAM_EFFICIENT_LOADING"] = text;
    }
  }
}

// ---- Versions and strategies.

bool has_another_version(const json& in) {
  return is_plugin(in) && version_of(in) != 1 && version_of(in) != 2;
}

void refuse(json& out, const std::vector<std::string>& says) {
  out = our_error({"ValueError"}, says);
  out["warnings"] = json::array();
  out["fsdp2_warnings"] = json::array();
}

void refuse_the_version(const json& /*in*/, json& out) {
  refuse(out, {"there are 1 and 2 only", "is not a whole number"});
}

bool has_the_number_of_a_strategy(const json& in) {
  return is_plugin(in) && version_of(in) == 1 &&
         (argument(in, "sharding_strategy").is_number_integer() ||
          argument(in, "reshard_after_forward").is_number_integer());
}

void take_the_member(const json& /*in*/, json& out) {
  if (!out.contains("fields")) return;
  for (const char* name : {"sharding_strategy", "reshard_after_forward"}) {
    json& fields = out["fields"];
    if (!fields.contains(name) || !fields[name].is_number_integer()) continue;
    const json member = strategy_of(fields[name]);
    if (member.is_null()) {
      refuse(out, {"is not a valid ShardingStrategy"});
      return;
    }
    fields[name] = member;
  }
}

// Version 1 is given its strategy as reshard_after_forward.
bool reshards_by_strategy(const json& in) {
  if (!is_plugin(in) || version_of(in) != 1) return false;
  if (!argument(in, "sharding_strategy").is_null()) return false;
  const json reshard = argument(in, "reshard_after_forward");
  if (!reshard.is_null()) return !reshard.is_boolean();
  return variable(in, "FSDP_SHARDING_STRATEGY").empty() &&
         !strategy_of(variable(in, "FSDP_RESHARD_AFTER_FORWARD")).is_null();
}

void train_by_it(const json& in, json& out) {
  if (!out.contains("fields")) return;
  json strategy = strategy_of(argument(in, "reshard_after_forward"));
  if (strategy.is_null()) strategy = strategy_of(variable(in, "FSDP_RESHARD_AFTER_FORWARD"));
  if (!strategy.is_null()) out["fields"]["sharding_strategy"] = strategy;
}

bool has_a_strategy_alone(const json& in) {
  return is_plugin(in) && version_of(in) == 2 && !argument(in, "sharding_strategy").is_null() &&
         argument(in, "reshard_after_forward").is_null();
}

bool reshards_to_a_number(const json& in) {
  return is_plugin(in) && version_of(in) == 2 &&
         argument(in, "reshard_after_forward").is_number_integer();
}

// One rank has all of them, as PyTorch warns.
void divide_among_so_many(const json& in, json& out) {
  const int64_t ranks = argument(in, "reshard_after_forward").get<int64_t>();
  if (ranks < 1) return refuse(out, {"divided among at least one rank"});
  accept(in, out);
  if (ranks > 1) {
    out["fields"]["reshard_after_forward"] = ranks;
    return;
  }
  out["fields"]["reshard_after_forward"] = false;
  out["fsdp2_warnings"] = json::array(
      {"reshard_after_forward=1 (int) means resharding parameters to world size 1, instead of "
       "reshard_after_forward=True (bool)"});
}

void reshard_by_the_strategy(const json& in, json& out) {
  if (!says(out, "reshard_after_forward set to None")) return;
  const json given = argument(in, "sharding_strategy");
  const json strategy = strategy_of(given);
  if (strategy.is_null()) return refuse(out, {"is not a valid ShardingStrategy"});
  accept(in, out);
  out["fields"]["sharding_strategy"] = given;
  out["fields"]["reshard_after_forward"] =
      strategy == strategy_json(1) || strategy == strategy_json(4);
  out["fsdp2_warnings"] = json::array(
      {"sharding_strategy is deprecated in favor of reshard_after_forward. This will be removed in "
       "a future version of Accelerate."});
}

// ---- Other fields.

bool says_no_to_forward_prefetch(const json& in) {
  return is_plugin(in) && version_of(in) == 2 && argument(in, "forward_prefetch") == false;
}

void let_it_say_no(const json& in, json& out) {
  if (says(out, "forward_prefetch is not yet implemented")) accept(in, out);
}

bool synchronises_without_a_gpu(const json& in) {
  return is_plugin(in) && !bool_field(in, "gpu") && version_of(in) == 1 &&
         (is_flag(in, "sync_module_states", "FSDP_SYNC_MODULE_STATES") ||
          is_flag(in, "cpu_ram_efficient_loading", "FSDP_CPU_RAM_EFFICIENT_LOADING"));
}

void synchronise_on_cpus(const json& in, json& out) {
  if (says(out, "There are currently no available devices found")) accept(in, out);
}

bool synchronises_on_a_gpu(const json& in) {
  return is_plugin(in) && bool_field(in, "gpu") && version_of(in) == 1 &&
         argument(in, "param_init_fn").is_null();
}

void need_no_function(const json& /*in*/, json& out) {
  if (out.contains("fields")) out["fields"].erase("param_init_fn");
}

bool ignores_modules_in_version_2(const json& in) {
  return is_plugin(in) && version_of(in) == 2 &&
         (!argument(in, "ignored_modules").is_null() ||
          (in.contains("env") && in["env"].contains("FSDP_IGNORED_MODULES")));
}

void ignore_them(const json& in, json& out) {
  if (!out.contains("fields")) return;
  const json given = argument(in, "ignored_modules");
  out["fields"]["ignored_modules"] =
      given.is_null() ? json(variable(in, "FSDP_IGNORED_MODULES")) : given;
  json kept = json::array();
  for (const json& warning : out["fsdp2_warnings"]) {
    if (!absl::StartsWith(warning.get<std::string>(), "FSDP2 ignored_params")) {
      kept.push_back(warning);
    }
  }
  out["fsdp2_warnings"] = kept;
}

bool has_a_value_of_another_type(const json& in) {
  if (!is_plugin(in)) return false;
  const json offload = argument(in, "cpu_offload");
  const json number = argument(in, "min_num_params");
  return offload.is_string() || offload.is_number() || number.is_string() ||
         number.is_number_float();
}

void leave_it_to_the_compiler(const json& /*in*/, json& out) {
  out = {{"refused_by_compiler", true}};
}

// The function that wraps by size is given, and no number of parameters.
bool wraps_by_size_without_a_number(const json& in) {
  return is_plugin(in) &&
         argument(in, "auto_wrap_policy") == json{{"$function", "size_based_auto_wrap_policy"}} &&
         argument(in, "min_num_params").is_null();
}

void take_the_variable_or_0(const json& in, json& out) {
  if (!out.contains("fields")) return;
  int64_t number = 0;
  if (!absl::SimpleAtoi(variable(in, "FSDP_MIN_NUM_PARAMS"), &number)) number = 0;
  out["fields"]["min_num_params"] = number;
  if (!out.contains("then")) return;
  for (json& each : out["then"]) {
    if (says(each, "'>' not supported") && number == 0) each = {{"auto_wrap_policy", nullptr}};
  }
}

// A number in the place of a size, which the policy or its variable makes count.
bool wraps_by_a_negative_size(const json& in) {
  if (!is_plugin(in)) return false;
  int64_t number = 0;
  const json given = argument(in, "min_num_params");
  if (given.is_number_integer()) {
    number = given;
  } else if (!given.is_null() || !absl::SimpleAtoi(variable(in, "FSDP_MIN_NUM_PARAMS"), &number)) {
    return false;
  }
  return number < 0;
}

void refuse_the_size(const json& /*in*/, json& out) {
  if (!out.contains("fields")) return;
  const json policy = out["fields"].value("auto_wrap_policy", json());
  if (policy == json{{"$function", "size_based_auto_wrap_policy"}}) {
    refuse(out, {"min_num_params is"});
  }
}

// ---- Types of state dicts.

bool is_any_plugin(const json& in) { return is_plugin(in); }

// The fields of a type that was given by its number.
void take_the_type(const json& /*in*/, json& out) {
  const auto take = [](json& fields, bool has_all_fields) {
    const json number = fields.value("state_dict_type", json());
    if (number != 1 && number != 3) return;
    const bool is_full = number == 1;
    fields["state_dict_type"] =
        enum_json("StateDictType", is_full ? "FULL_STATE_DICT" : "SHARDED_STATE_DICT");
    if (!has_all_fields) return;
    for (const std::string kind : {"", "Optim"}) {
      json& config = fields[kind.empty() ? "state_dict_config" : "optim_state_dict_config"];
      if (config.is_object()) continue;
      config = {{"$object", (is_full ? "Full" : "Sharded") + kind + "StateDictConfig"},
                {"offload_to_cpu", true}};
      if (is_full) config["rank0_only"] = true;
    }
  };
  if (out.contains("fields")) take(out["fields"], /*has_all_fields=*/true);
  if (!out.contains("then")) return;
  for (json& each : out["then"]) take(each, /*has_all_fields=*/false);
}

// Removes, from the calls after a failed call, changes to values that the failed call left behind.
void begin_as_before(const json& /*in*/, json& out) {
  if (!out.contains("then") || !out.contains("fields")) return;
  json promised = out["fields"];
  for (json& each : out["then"]) {
    if (each.contains("error")) continue;
    for (auto it = each.begin(); it != each.end();) {
      if (promised.value(it.key(), json()) == it.value()) {
        it = each.erase(it);
      } else {
        promised[it.key()] = it.value();
        ++it;
      }
    }
  }
}

bool names_classes_in_a_text(const json& in) {
  return is_plugin(in) && argument(in, "transformer_cls_names_to_wrap").is_string();
}

void list_them(const json& in, json& out) {
  if (!out.contains("fields")) return;
  const std::vector<std::string> names =
      absl::StrSplit(argument(in, "transformer_cls_names_to_wrap").get<std::string>(), ',');
  out["fields"]["transformer_cls_names_to_wrap"] = names;
}

// ---- Which modules are computed again.

bool recomputes_without_a_policy(const json& in) {
  return is_kind(in, "units") && version_of(in) == 2;
}

// The module and all below it, each before what is in it.
void list_modules(const json& tree, const std::string& path, json& names) {
  names.push_back(path);
  for (const json& child : tree.at("children")) {
    const auto name = child.at(0).get<std::string>();
    list_modules(child.at(1), path.empty() ? name : path + "." + name, names);
  }
}

void recompute_all(const json& in, json& out) {
  if (!out.contains("checkpointed") ||
      !says(out["checkpointed"], "'NoneType' object is not callable")) {
    return;
  }
  out["checkpointed"] = json::array();
  list_modules(field(in, "model"), "", out["checkpointed"]);
}

// ---- Lists of modules.

int64_t numel_of(const json& tree) {
  int64_t numel = 0;
  for (const json& parameter : tree.at("params")) {
    int64_t own = 1;
    for (const json& dim : parameter.at(1)) own *= dim.get<int64_t>();
    numel += own;
  }
  for (const json& child : tree.at("children")) numel += numel_of(child.at(1));
  return numel;
}

// The modules below a tree that have more parameters, each behind what is in it.
void list_large(const json& tree, const std::string& path, int64_t least, json& names) {
  for (const json& child : tree.at("children")) {
    const auto name = child.at(0).get<std::string>();
    const std::string place = path.empty() ? name : path + "." + name;
    list_large(child.at(1), place, least, names);
    if (numel_of(child.at(1)) > least) names.push_back(place);
  }
}

bool has_large_list(const json& tree, int64_t least) {
  if (tree.at("class") == "ModuleList" && numel_of(tree) > least) return true;
  return std::ranges::any_of(tree.at("children"),
                             [&](const json& child) { return has_large_list(child.at(1), least); });
}

bool picks_a_list_by_size(const json& in) {
  if (!is_kind(in, "units") || version_of(in) != 2) return false;
  const json least = argument(in, "min_num_params");
  return least.is_number_integer() && has_large_list(field(in, "model"), least.get<int64_t>()) &&
         string_field(in, "mixed_precision") == "no";
}

// Where preparing the model failed.
void make_it_a_unit(const json& in, json& out) {
  if (!out.contains("prepare") || !out["prepare"].contains("error")) return;
  out.erase("prepare");
  json names = json::array();
  list_large(field(in, "model"), "", argument(in, "min_num_params").get<int64_t>(), names);
  names.push_back("");
  const json reshard = argument(in, "reshard_after_forward");
  out["sharded"] = json::array();
  for (const json& name : names) {
    json unit = {{"modules", json::array({name})},
                 {"offload_policy", {{"$object", "OffloadPolicy"}}},
                 {"mp_policy",
                  {{"$object", "MixedPrecisionPolicy"},
                   {"param_dtype", nullptr},
                   {"reduce_dtype", nullptr},
                   {"output_dtype", nullptr},
                   {"cast_forward_inputs", true}}}};
    if (name != "") unit["reshard_after_forward"] = reshard.is_null() ? json(true) : reshard;
    out["sharded"].push_back(std::move(unit));
  }
  out["upcast"] = json::array();
  out["log"] = json::array();
}

constexpr char kWrapper[] = "._checkpoint_wrapped_module";

bool is_recomputed_first(const json& in) {
  return is_kind(in, "units") && bool_field_or(in, "checkpoint_first", false);
}

// A module and the wrapper around it are one unit.
void wrap_nothing(const json& /*in*/, json& out) {
  if (!out.contains("sharded")) return;
  json kept = json::array();
  for (json unit : out["sharded"]) {
    for (json& name : unit.at("modules")) {
      name = absl::StrReplaceAll(name.get<std::string>(), {{kWrapper, ""}});
    }
    if (kept.empty() || kept.back() != unit) kept.push_back(std::move(unit));
  }
  out["sharded"] = std::move(kept);
}

// ---- to-fsdp2

bool is_to_fsdp2(const json& in) { return is_kind(in, "to_fsdp2") && in.at("yaml").is_string(); }

std::smatch strategy_in(const std::string& yaml) {
  static const std::regex kStrategy(
      R"(fsdp_(?:sharding_strategy|reshard_after_forward): *['"]?([A-Za-z0-9_]+))");
  std::smatch found;
  std::regex_search(yaml, found, kStrategy);
  return found;
}

bool has_a_strategy_in_other_words(const json& in) {
  if (!is_to_fsdp2(in)) return false;
  const std::string yaml = in["yaml"].get<std::string>();
  const std::smatch found = strategy_in(yaml);
  if (found.empty()) return false;
  const std::string word = found[1];
  return !strategy_of(word).is_null() &&
         (absl::ascii_isdigit(static_cast<unsigned char>(word[0])) ||
          word != absl::AsciiStrToUpper(word));
}

void translate_it(const json& in, json& out) {
  if (!out.contains("yaml")) return;
  const std::string yaml = in["yaml"].get<std::string>();
  const json strategy = strategy_of(strategy_in(yaml)[1].str());
  const bool reshards = strategy == strategy_json(1) || strategy == strategy_json(4);
  static const std::regex kReshard("fsdp_reshard_after_forward: [^\n]*");
  out["yaml"] = std::regex_replace(
      out["yaml"].get<std::string>(), kReshard,
      std::string("fsdp_reshard_after_forward: ") + (reshards ? "true" : "false"));
}

// Keys of FSDP without a value.
bool has_keys_without_a_value(const json& in) {
  static const std::regex kKey("(^|\n)  [A-Za-z_0-9]+: *(null|~)?(\n|$)");
  return is_to_fsdp2(in) && std::regex_search(in["yaml"].get<std::string>(), kKey);
}

void leave_them_out(const json& in, json& out) {
  if (!out.contains("yaml")) return;
  static const std::regex kNull("(^|\n)  [A-Za-z_0-9]+: null(?=\n)");
  out["yaml"] = std::regex_replace(out["yaml"].get<std::string>(), kNull, "");
  const std::string yaml = "\n" + in["yaml"].get<std::string>() + "\n";
  std::erase_if(out["log"].get_ref<json::array_t&>(), [&](const json& line) {
    static const std::regex kArgument("^Argument ([A-Za-z_0-9]+) (has been removed|is not yet)");
    const std::string message = line.value("message", "");
    std::smatch found;
    if (!std::regex_search(message, found, kArgument)) return false;
    const std::string key = "\n  " + found[1].str() + ":";
    return absl::StrContains(yaml, key + "\n") || absl::StrContains(yaml, key + " null\n") ||
           absl::StrContains(yaml, key + " ~\n");
  });
}

// Keys that no configuration has, at the top or among those of FSDP.
bool has_unknown_keys(const json& in) {
  if (!is_to_fsdp2(in)) return false;
  static const std::set<std::string> kSections = {"compute_environment",
                                                  "distributed_type",
                                                  "debug",
                                                  "use_cpu",
                                                  "same_network",
                                                  "fsdp_config",
                                                  "deepspeed_config",
                                                  "megatron_lm_config",
                                                  "fp8_config",
                                                  "dynamo_config",
                                                  "mpirun_config",
                                                  "parallelism_config"};
  static const std::regex kKey("(^|\n)(  )?([A-Za-z_0-9]+):");
  const std::string yaml = in["yaml"];
  for (std::sregex_iterator key(yaml.begin(), yaml.end(), kKey), end; key != end; ++key) {
    const std::string name = (*key)[3];
    if (find_launch_flag(name) == nullptr && find_launch_flag("fsdp_" + name) == nullptr &&
        !kSections.contains(name)) {
      return true;
    }
  }
  return false;
}

void refuse_unknown_keys(const json& in, json& out) {
  if (out.contains("error")) return;
  // A file that does not say how it starts is refused for that first.
  const bool says_how =
      in["yaml"].get<std::string>().find("distributed_type:") != std::string::npos;
  out = our_error({"InvalidArgument"}, {says_how ? "unknown" : "distributed_type"});
  out["log"] = json::array();
}

}  // namespace

std::vector<Decision> fsdp_plugin_rules() {
  return {
      {kFamily, "another version",
       "HF Accelerate takes any number for a version, and then does "
       "what neither version does; here it is an error",
       &has_another_version, &refuse_the_version},
      {kFamily, "strategies by number",
       "HF Accelerate leaves the number of a strategy as it is, which FSDP does not know; here it "
       "is the strategy",
       &has_the_number_of_a_strategy, &take_the_member},
      {kFamily, "the strategy of version 1 as reshard_after_forward",
       "HF Accelerate trains by FULL_SHARD whatever strategy reshard_after_forward names; here "
       "version 1 trains by it, as its documentation says",
       &reshards_by_strategy, &train_by_it},
      {kFamily, "a strategy for version 2",
       "HF Accelerate refuses a sharding_strategy without reshard_after_forward, which it says "
       "None of; here the strategy says whether to reshard",
       &has_a_strategy_alone, &reshard_by_the_strategy},
      {kFamily, "a number for reshard_after_forward",
       "HF Accelerate refuses a number in version 2; here it is how many ranks divide parameters "
       "after the forward pass, as in fully_shard",
       &reshards_to_a_number, &divide_among_so_many},
      {kFamily, "no forward_prefetch",
       "HF Accelerate refuses forward_prefetch=False in version 2; here only True is an error",
       &says_no_to_forward_prefetch, &let_it_say_no},
      {kFamily, "sync_module_states on CPUs",
       "HF Accelerate needs a GPU to synchronise modules; here ranks on CPUs do it as well",
       &synchronises_without_a_gpu, &synchronise_on_cpus},
      {kFamily, "memory for sync_module_states",
       "HF Accelerate sets a param_init_fn that makes memory for rank 0's values; here it is made "
       "group by group, and a function of the user's stays",
       &synchronises_on_a_gpu, &need_no_function},
      {kFamily, "ignored_modules in version 2",
       "HF Accelerate drops them with torch before 2.7; here they work in both versions",
       &ignores_modules_in_version_2, &ignore_them},
      {kFamily, "values of another type",
       "HF Accelerate raises an error for them; here the compiler refuses them",
       &has_a_value_of_another_type, &leave_it_to_the_compiler},
      {kFamily, "wrapping by size without a number",
       "HF Accelerate crashes where its function is given in place of the name; here both read "
       "FSDP_MIN_NUM_PARAMS",
       &wraps_by_size_without_a_number, &take_the_variable_or_0},
      {kFamily, "a negative size",
       "HF Accelerate takes any number of parameters; here a negative one is an error",
       &wraps_by_a_negative_size, &refuse_the_size},
      {kFamily, "types of state dicts by number",
       "HF Accelerate leaves the number as it is, which nothing knows; here it is the type",
       &is_any_plugin, &take_the_type},
      {kFamily, "a type of state dict that is refused",
       "HF Accelerate keeps it; here the plug-in is as it was", &is_any_plugin, &begin_as_before},
      {kFamily, "classes in a text",
       "HF Accelerate keeps a text where it needs no list; here the "
       "names are a list",
       &names_classes_in_a_text, &list_them},
      {kFamily, "recomputing without a policy",
       "HF Accelerate crashes where version 2 recomputes and has no policy; here every "
       "accelerate::block() is recomputed",
       &recomputes_without_a_policy, &recompute_all},
      {kFamily, "a list of modules as a unit",
       "HF Accelerate fails in version 2 where a size picks a ModuleList; here it is a unit",
       &picks_a_list_by_size, &make_it_a_unit},
      {kFamily, "wrappers of modules that are recomputed",
       "HF Accelerate wraps such modules, and divides the wrapper and the module in it; here "
       "nothing is wrapped",
       &is_recomputed_first, &wrap_nothing},
      {kFamily, "strategies of to-fsdp2",
       "HF Accelerate translates only strategies in capitals; here those by number and in small "
       "letters as well",
       &has_a_strategy_in_other_words, &translate_it},
      {kFamily, "keys without a value",
       "HF Accelerate carries them over, and tells which it drops; here they are left out",
       &has_keys_without_a_value, &leave_them_out},
      {kFamily, "unknown keys of a file",
       "HF Accelerate carries them over; here they are refused, as launch refuses them",
       &has_unknown_keys, &refuse_unknown_keys},
  };
}

}  // namespace accelerate::golden
