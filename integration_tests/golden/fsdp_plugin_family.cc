// The options of FSDP, the units that they make of a model, and small helpers.
#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/ops/scalar_tensor.h>
#include <torch/nn/module.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "accelerate/config/fsdp_plugin.h"
#include "accelerate/parallel/sharded/units.h"
#include "accelerate/platform/environment.h"
#include "accelerate/platform/host_files.h"
#include "accelerate/testing/recorded_warnings.h"
#include "accelerate/values/texts.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/dtypes.h"
#include "integration_tests/golden/family.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/torch_trees.h"
#include "launch/commands/commands.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;
using Plugin = FullyShardedDataParallelPlugin;
using DtypeMap = std::map<std::string, c10::ScalarType>;
using ModuleList = std::vector<std::shared_ptr<torch::nn::Module>>;

// ---- Values that JSON lacks.

bool is_object(const json& value, const char* key) {
  return value.is_object() && value.contains(key);
}

template <typename E>
E enum_of(const json& value) {
  const std::vector<std::string> parts = absl::StrSplit(value.at("$enum").get<std::string>(), '.');
  if (parts.size() != 2 || parts[0] != EnumTable<E>::kName || !contains<E>(parts[1])) {
    throw CaseError("$enum: unknown " + value.dump());
  }
  return from_string<E>(parts[1]);
}

template <typename E>
EnumChoice<E> choice_of(const json& value) {
  if (is_object(value, "$enum")) return enum_of<E>(value);
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_string()) return value.get<std::string>();
  throw DoesNotCompile();
}

template <typename T>
T object_of(const json& value) {
  T object;
  for (const auto& [key, member] : value.items()) {
    if (key == "$object") continue;
    bool known = false;
    visit_fields(object, [&](const char* name, auto& field) {
      if (key != name) return;
      known = true;
      if constexpr (std::is_same_v<std::decay_t<decltype(field)>, bool>) {
        field = member.get<bool>();
      } else if (!member.is_null()) {
        field = dtype_of(member.at("$dtype"));
      }
    });
    if (!known) throw CaseError("$object: unknown field " + key);
  }
  return object;
}

// The alternative whose class the object has, added to a field.
template <typename Field, typename... Classes>
void take_object(Field& field, const json& value, std::type_identity<std::variant<Classes...>>) {
  const std::string name = string_field(value, "$object");
  const bool known =
      ((name == name_of_class(Classes()) ? (field = object_of<Classes>(value), true) : false) ||
       ...);
  if (!known) throw CaseError("$object: unknown " + name);
}

// ---- The plugin of a case.

bool bool_of(const json& value) {
  if (!value.is_boolean()) throw DoesNotCompile();
  return value.get<bool>();
}

std::vector<std::string> texts_of(const json& value) {
  if (value.is_string()) return absl::StrSplit(value.get<std::string>(), ',');
  return value.get<std::vector<std::string>>();
}

void set_reshard(Plugin& plugin, const json& value) {
  if (value.is_boolean()) {
    plugin.reshard_after_forward = value.get<bool>();
  } else {
    std::visit([&](auto choice) { plugin.reshard_after_forward = choice; },
               choice_of<ShardingStrategy>(value));
  }
}

void set_cpu_offload(Plugin& plugin, const json& value) {
  if (value.is_boolean()) {
    plugin.cpu_offload = value.get<bool>();
  } else if (is_object(value, "$object")) {
    take_object(plugin.cpu_offload, value,
                std::type_identity<std::variant<CPUOffload, OffloadPolicy, CPUOffloadPolicy>>());
  } else {
    static_assert(!std::is_constructible_v<std::variant<bool, CPUOffload>, const char*> &&
                  !std::is_constructible_v<std::variant<bool, CPUOffload>, int>);
    throw DoesNotCompile();
  }
}

void set_precision(Plugin& plugin, const json& value) {
  if (value.is_string()) {
    plugin.mixed_precision_policy = value.get<std::string>();
  } else if (is_object(value, "$object")) {
    take_object(plugin.mixed_precision_policy, value,
                std::type_identity<std::variant<MixedPrecision, MixedPrecisionPolicy>>());
  } else if (value.is_object()) {
    DtypeMap dtypes;
    for (const auto& [name, dtype] : value.items()) {
      if (!is_object(dtype, "$dtype")) throw DoesNotCompile();
      dtypes[name] = dtype_of(dtype.at("$dtype"));
    }
    plugin.mixed_precision_policy = dtypes;
  } else {
    throw DoesNotCompile();
  }
}

void set_wrap_policy(Plugin& plugin, const json& value) {
  if (value.is_string()) {
    plugin.auto_wrap_policy = value.get<std::string>();
  } else if (is_object(value, "$function")) {
    const std::string name = string_field(value, "$function");
    if (name == "transformer_auto_wrap_policy") {
      plugin.auto_wrap_policy = AutoWrapPolicy::kTransformerBasedWrap;
    } else if (name == "size_based_auto_wrap_policy") {
      plugin.auto_wrap_policy = AutoWrapPolicy::kSizeBasedWrap;
    } else {
      plugin.auto_wrap_policy = ModulePolicy([](const torch::nn::Module&) { return false; });
    }
  } else {
    throw DoesNotCompile();
  }
}

void set_argument(Plugin& plugin, const std::string& name, const json& value) {
  if (value.is_null()) return;
  const std::map<std::string, std::function<void()>> setters = {
      {"fsdp_version", [&] { plugin.fsdp_version = to_int(value, name); }},
      {"sharding_strategy", [&] { plugin.sharding_strategy = choice_of<ShardingStrategy>(value); }},
      {"reshard_after_forward", [&] { set_reshard(plugin, value); }},
      {"backward_prefetch", [&] { plugin.backward_prefetch = choice_of<BackwardPrefetch>(value); }},
      {"mixed_precision_policy", [&] { set_precision(plugin, value); }},
      {"auto_wrap_policy", [&] { set_wrap_policy(plugin, value); }},
      {"cpu_offload", [&] { set_cpu_offload(plugin, value); }},
      {"ignored_modules",
       [&] {
         if (value.is_string()) {
           plugin.ignored_modules = value.get<std::string>();
         } else if (value.empty()) {
           plugin.ignored_modules = ModuleList();
         } else {
           throw CaseError("ignored_modules: " + value.dump());
         }
       }},
      {"state_dict_type", [&] { plugin.state_dict_type = choice_of<StateDictType>(value); }},
      {"state_dict_config",
       [&] {
         take_object(plugin.state_dict_config, value, std::type_identity<StateDictConfig>());
       }},
      {"optim_state_dict_config",
       [&] {
         take_object(plugin.optim_state_dict_config, value,
                     std::type_identity<OptimStateDictConfig>());
       }},
      {"limit_all_gathers", [&] { plugin.limit_all_gathers = bool_of(value); }},
      {"use_orig_params", [&] { plugin.use_orig_params = bool_of(value); }},
      {"param_init_fn", [&] { plugin.param_init_fn = [](torch::nn::Module&) {}; }},
      {"sync_module_states", [&] { plugin.sync_module_states = bool_of(value); }},
      {"forward_prefetch", [&] { plugin.forward_prefetch = bool_of(value); }},
      {"activation_checkpointing", [&] { plugin.activation_checkpointing = bool_of(value); }},
      {"cpu_ram_efficient_loading", [&] { plugin.cpu_ram_efficient_loading = bool_of(value); }},
      {"transformer_cls_names_to_wrap",
       [&] { plugin.transformer_cls_names_to_wrap = texts_of(value); }},
      {"min_num_params",
       [&] {
         if (!value.is_number_integer()) throw DoesNotCompile();
         plugin.min_num_params = value.get<int64_t>();
       }},
  };
  const auto setter = setters.find(name);
  if (setter == setters.end()) throw CaseError("kwargs: unknown " + name);
  setter->second();
}

// Where the plugin has the field.
template <typename P>
bool set_checkpointing_offload(P& plugin, const json& value) {
  if constexpr (requires { plugin.activation_checkpointing_offload; }) {
    if (!value.is_boolean()) throw DoesNotCompile();
    plugin.activation_checkpointing_offload = value.get<bool>();
    return true;
  } else {
    return false;
  }
}
template <typename P>
bool offloads_checkpoints(const P& plugin) {
  if constexpr (requires { plugin.activation_checkpointing_offload; }) {
    return plugin.activation_checkpointing_offload.value_or(false);
  } else {
    return false;
  }
}

Plugin plugin_of(const json& kwargs, Environment& environment) {
  Plugin plugin;
  for (const auto& [name, value] : kwargs.items()) {
    if (name == "activation_checkpointing_offload" && set_checkpointing_offload(plugin, value)) {
      continue;
    }
    set_argument(plugin, name, value);
  }
  return resolve(plugin, environment);
}

// ---- The plugin's fields in the format of the vector file.

// A policy that set_auto_wrap_policy has bound to a model has arguments.
json policy_json(const Plugin& plugin, bool is_bound) {
  if (!plugin.auto_wrap_policy) return nullptr;
  const auto* kind = std::get_if<AutoWrapPolicy>(&*plugin.auto_wrap_policy);
  if (kind == nullptr) return {{"$function", "user"}};
  if (*kind == AutoWrapPolicy::kSizeBasedWrap) {
    json policy = {{"$function", "size_based_auto_wrap_policy"}};
    if (is_bound) policy["arguments"] = {{"min_num_params", *plugin.min_num_params}};
    return policy;
  }
  json policy = {{"$function", "transformer_auto_wrap_policy"}};
  if (is_bound) {
    std::vector<std::string> names = *plugin.transformer_cls_names_to_wrap;
    std::ranges::sort(names);
    const auto repeated = std::ranges::unique(names);
    names.erase(repeated.begin(), repeated.end());
    json classes = json::array();
    for (const std::string& name : names) classes.push_back({{"$class", name}});
    policy["arguments"] = {{"transformer_layer_cls", classes}};
  }
  return policy;
}

template <typename T>
json value_json(const T& value) {
  if constexpr (EnumWithText<T>) {
    return {{"$enum", absl::StrCat(EnumTable<T>::kName, ".", to_string(value))}};
  } else if constexpr (std::is_same_v<T, c10::ScalarType>) {
    const char* const name = value == at::kHalf       ? "float16"
                             : value == at::kBFloat16 ? "bfloat16"
                             : value == at::kFloat    ? "float32"
                                                      : "float64";
    return {{"$dtype", name}};
  } else if constexpr (HasFields<T>) {
    json object = {{"$object", name_of_class(value)}};
    visit_fields(value,
                 [&](const char* name, const auto& member) { object[name] = value_json(member); });
    return object;
  } else if constexpr (std::is_same_v<T, ModuleList>) {
    return json::array();
  } else if constexpr (requires { value.has_value(); }) {
    return value ? value_json(*value) : json();
  } else if constexpr (requires { value.valueless_by_exception(); }) {
    return std::visit([](const auto& one) { return value_json(one); }, value);
  } else if constexpr (std::is_constructible_v<json, const T&>) {
    return value;
  } else {
    return value ? json("set") : json();
  }
}

json fields_json(const Plugin& plugin, bool is_bound = false) {
  json fields = json::object();
  visit_fields(plugin, [&](const std::string& name, const auto& field) {
    json value = name == "auto_wrap_policy" ? policy_json(plugin, is_bound) : value_json(field);
    if (!value.is_null()) fields[name] = std::move(value);
  });
  return fields;
}

// The fields that differ; null for a field that is gone.
json changed(const json& before, const json& after) {
  json changes = json::object();
  for (const auto& [name, value] : before.items()) {
    if (!after.contains(name)) changes[name] = nullptr;
  }
  for (const auto& [name, value] : after.items()) {
    if (!before.contains(name) || before[name] != value) changes[name] = value;
  }
  return changes;
}

// ---- kind: plugin

void call(Plugin& plugin, bool& is_bound, const std::string& method, const json& arguments) {
  if (method == "set_state_dict_type") {
    expect_fields(arguments, {"state_dict_type"});
    if (!arguments.contains("state_dict_type")) return plugin.set_state_dict_type();
    plugin.set_state_dict_type(choice_of<StateDictType>(arguments["state_dict_type"]));
  } else if (method == "set_auto_wrap_policy") {
    expect_fields(arguments, {"model", "special", "tied"});
    const auto model = torch_module_of(field(arguments, "model"), arguments.value("tied", json()),
                                       arguments.value("special", json()));
    plugin.set_auto_wrap_policy(*model);
    is_bound = true;
  } else if (method == "set_mixed_precision") {
    expect_fields(arguments, {"mixed_precision", "buffer_autocast", "override"});
    const bool buffer_autocast = bool_field_or(arguments, "buffer_autocast", false);
    const bool override = bool_field_or(arguments, "override", false);
    const json& precision = field(arguments, "mixed_precision");
    if (is_object(precision, "$dtype")) {
      plugin.set_mixed_precision(dtype_of(precision["$dtype"]), buffer_autocast, override);
    } else {
      plugin.set_mixed_precision(precision.get<std::string>(), buffer_autocast, override);
    }
  } else if (method == "validate_mixed_precision_policy") {
    plugin.validate_mixed_precision_policy();
  } else if (method == "set_cpu_offload") {
    plugin.set_cpu_offload();
  } else if (method == "validate_cpu_offload") {
    plugin.validate_cpu_offload();
  } else {
    throw CaseError("then: unknown " + method);
  }
}

// Warnings of version 2 stand in one, under a headline.
void add_warnings(const RecordedWarnings& warnings, json& out) {
  static const std::string kHeadline = "Multiple deprecation warnings due to FSDP2 conversion:\n";
  out["warnings"] = json::array();
  std::vector<std::string> of_version_2;
  for (std::string text : plain_texts(warnings)) {
    if (text.starts_with(kHeadline)) {
      of_version_2 = absl::StrSplit(text.substr(kHeadline.size()), '\n');
    } else {
      out["warnings"].push_back({{"category", "UserWarning"}, {"message", std::move(text)}});
    }
  }
  std::ranges::sort(of_version_2);
  out["fsdp2_warnings"] = of_version_2;
}

json run_plugin(const json& in) {
  expect_fields(in, {"kind", "env", "kwargs", "gpu", "then", "note"});
  Environment environment = environment_of(in);
  const std::map<std::string, std::string> before = environment.variables();
  const RecordedWarnings warnings;
  std::optional<Plugin> plugin;
  json out = part([&]() -> json {
    plugin = plugin_of(field(in, "kwargs"), environment);
    return {{"fields", fields_json(*plugin)}};
  });
  if (out.contains("refused_by_compiler")) return out;
  if (plugin) {
    out["env_after"] = changed(before, environment.variables());
    bool is_bound = false;
    for (const json& each : in.value("then", json::array())) {
      const json fields = fields_json(*plugin, is_bound);
      out["then"].push_back(part([&] {
        call(*plugin, is_bound, each.at(0), each.at(1));
        return changed(fields, fields_json(*plugin, is_bound));
      }));
    }
  }
  add_warnings(warnings, out);
  return out;
}

// ---- kind: units

json names_of(const std::vector<NamedModule>& modules) {
  json names = json::array();
  for (const NamedModule& each : modules) names.push_back(each.name);
  return names;
}

json run_units(const json& in) {
  expect_fields(in, {"kind", "model", "tied", "special", "plugin", "mixed_precision",
                     "checkpoint_first", "note"});
  Environment environment = environment_of({});
  const auto model = torch_module_of(field(in, "model"), field(in, "tied"), field(in, "special"));
  Plugin plugin = plugin_of(field(in, "plugin"), environment);
  plugin.set_auto_wrap_policy(*model);
  json out = {{"policy", policy_json(plugin, /*is_bound=*/true)}};
  const bool is_by_size = plugin.min_num_params && plugin.auto_wrap_policy;
  const std::vector<ShardUnit> units = fsdp_units(*model, plugin);
  if (plugin.version() == 1) {
    out["wrapped"] = auto_wrapped_modules(*model, plugin);
    if (!is_by_size) out["checkpointed"] = names_of(recomputed_modules(*model, plugin));
    return out;
  }
  out["checkpointed"] = names_of(recomputed_modules(*model, plugin));
  if (offloads_checkpoints(plugin)) out["offloaded"] = out["checkpointed"];
  out["sharded"] = json::array();
  for (const ShardUnit& unit : units) {
    json each = {
        {"modules", unit.modules},
        {"offload_policy", value_json(plugin.cpu_offload)},
        {"mp_policy", plugin.mixed_precision_policy ? value_json(plugin.mixed_precision_policy)
                                                    : value_json(MixedPrecisionPolicy())}};
    // Nothing is passed for the model itself, whose parameters stay.
    const bool is_root = unit.modules.front().empty();
    if (!is_root) each["reshard_after_forward"] = unit.reshard_after_forward;
    out["sharded"].push_back(std::move(each));
  }
  out["upcast"] = json::array();
  out["log"] = json::array();
  if (string_field(in, "mixed_precision") == "no") return out;
  const std::vector<std::string> widened = parameters_to_widen(*model);
  out["upcast"] = widened;
  if (!widened.empty()) {
    out["log"].push_back({{"level", "INFO"}, {"message", "[RANK 0] " + widening_text(widened)}});
  }
  return out;
}

// ---- kind: to_fsdp2

void write_text(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

std::string text_at(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// What is written, without the defaults of other keys, which are written here as `config` writes
// them: the lines below top-level keys that the input has.
std::string without_defaults(const std::string& written, const std::string& input) {
  std::string kept;
  bool keeps = false;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(written, '\n'))) {
    if (line.empty()) continue;
    if (line[0] != ' ' && line[0] != '-') {
      keeps = absl::StrContains("\n" + input, "\n" + line.substr(0, line.find(':') + 1));
    }
    if (keeps) kept += line + "\n";
  }
  return kept;
}

json run_to_fsdp2(const json& in) {
  expect_fields(in, {"kind", "yaml", "overwrite", "output", "note"});
  const TemporaryFolder folder;
  const std::string config = folder.path() + "/config.yaml";
  const std::string other = folder.path() + "/output.yaml";
  const json& yaml = field(in, "yaml");
  if (yaml.is_string()) write_text(config, yaml.get<std::string>());
  launcher::commands::ToFsdp2Options options = {.config_file = config,
                                                .overwrite = bool_field(in, "overwrite")};
  const json& output = field(in, "output");
  if (output.is_string()) options.output_file = other;
  if (output == "exists") write_text(other, "there: already\n");
  std::vector<launcher::commands::Notice> notices;
  const auto written = launcher::commands::to_fsdp2(options, notices);
  json out = written.ok()
                 ? json{{"yaml", without_defaults(text_at(*written), yaml.get<std::string>())},
                        {"input_unchanged", yaml == text_at(config)}}
                 : status_error(written.status());
  out["log"] = json::array();
  for (const auto& notice : notices) {
    out["log"].push_back(
        {{"level", notice.is_warning ? "WARNING" : "INFO"}, {"message", notice.text}});
  }
  return out;
}

// ---- The small kinds.

json run_canonical_names(const json& in) {
  NamedTensors parameters;
  for (const json& name : field(in, "names")) {
    parameters.emplace_back(name.get<std::string>(),
                            at::scalar_tensor(static_cast<int64_t>(parameters.size())));
  }
  json names = json::array();
  for (const auto& [name, parameter] : fsdp2_canonicalize_names(parameters)) {
    names.push_back({name, parameter.item<int64_t>()});
  }
  return {{"names", names}};
}

json run_final_norm(const json& in) {
  const auto model = torch_module_of(field(in, "model"), {}, in.value("special", json()));
  const std::optional<std::string> norm = find_final_norm(*model);
  return {{"module", norm ? json(*norm) : json()}};
}

json run_parameters_from_modules(const json& in) {
  expect_fields(in, {"kind", "model", "modules", "tied", "note"});
  const auto model = torch_module_of(field(in, "model"), in.value("tied", json()), {});
  const json& modules = field(in, "modules");
  std::vector<std::string> names;
  if (modules.is_string()) {
    names = modules_that_match(*model, modules.get<std::string>());
  } else if (modules.is_array()) {
    names = modules.get<std::vector<std::string>>();
  }
  std::vector<std::string> parameters = get_parameters_from_modules(names, *model);
  std::ranges::sort(parameters);
  return {{"parameters", parameters}};
}

json run_state_dict_options(const json& in) {
  Environment environment = environment_of({});
  return {{"options", value_json(state_dict_options(plugin_of(field(in, "plugin"), environment)))}};
}

json run_ram_efficient(const json& in) {
  expect_fields(in, {"kind", "function", "env", "note"});
  Environment environment = environment_of(in);
  if (string_field(in, "function") == "enable") {
    enable_fsdp_ram_efficient_loading(environment);
  } else {
    disable_fsdp_ram_efficient_loading(environment);
  }
  return {{"env", environment.variables()}};
}

json run_case(const json& in) {
  const std::string kind = string_field(in, "kind");
  if (kind == "plugin") return run_plugin(in);
  if (kind == "units") return run_units(in);
  if (kind == "to_fsdp2") return run_to_fsdp2(in);
  if (kind == "canonical_names") return run_canonical_names(in);
  if (kind == "final_norm") return run_final_norm(in);
  if (kind == "parameters_from_modules") return run_parameters_from_modules(in);
  if (kind == "state_dict_options") return run_state_dict_options(in);
  if (kind == "ram_efficient") return run_ram_efficient(in);
  throw CaseError("kind: unknown " + kind);
}

const FamilyRegistration kRegistration("fsdp_plugin", &run_case);

}  // namespace
}  // namespace accelerate::golden
