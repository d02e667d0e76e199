// The options of DeepSpeed, its configuration, and what "auto" becomes when objects are prepared.
#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "accelerate/accelerator.h"
#include "accelerate/config/deepspeed_auto.h"
#include "accelerate/config/deepspeed_plugin.h"
#include "accelerate/config/dummy_objects.h"
#include "accelerate/platform/environment.h"
#include "accelerate/platform/host_files.h"
#include "accelerate/testing/recorded_warnings.h"
#include "accelerate/values/texts.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/deepspeed_objects.h"
#include "integration_tests/golden/family.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/torch_trees.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;
using Json = nlohmann::ordered_json;
using Plugin = DeepSpeedPlugin;

// ---- Values that JSON lacks.

bool is_object(const json& value, const char* key) {
  return value.is_object() && value.contains(key);
}

json plain(const Json& value) {
  if (value.is_number_float() && value.get<double>() > 1e300) return {{"$float", "inf"}};
  if (!value.is_structured()) return json(value);
  json result = value.is_object() ? json::object() : json::array();
  for (const auto& [key, entry] : value.items()) {
    if (value.is_object()) {
      result[key] = plain(entry);
    } else {
      result.push_back(plain(entry));
    }
  }
  return result;
}

std::string write_text(const TemporaryFolder& folder, const json& text) {
  const std::string path = folder.path() + "/ds_config.json";
  std::ofstream(path) << text.get<std::string>();
  return path;
}

// The argument hf_ds_config.
Json source_of(const json& given, const TemporaryFolder& folder) {
  if (is_object(given, "$file")) return write_text(folder, given["$file"]);
  if (is_object(given, "$base64")) return absl::WebSafeBase64Escape(given["$base64"].dump());
  if (is_object(given, "$json")) return given["$json"].dump();
  if (is_object(given, "$config")) return Json(given["$config"]);
  return Json(given);
}

Environment variables_of(const json& in, const TemporaryFolder& folder) {
  json env = in.value("env", json::object());
  for (auto& [name, value] : env.items()) {
    if (is_object(value, "$file")) value = write_text(folder, value["$file"]);
  }
  return environment_of({{"env", env}});
}

// ---- The plugin of a case.

template <typename Number>
void set_number(std::optional<std::variant<Number, std::string>>& field, const json& value) {
  if (value.is_string()) {
    field = value.get<std::string>();
  } else if (std::is_same_v<Number, double> ? value.is_number() : value.is_number_integer()) {
    field = value.get<Number>();
  } else {
    throw DoesNotCompile();
  }
}
void set_text(std::optional<std::string>& field, const json& value) {
  if (!value.is_string()) throw DoesNotCompile();
  field = value.get<std::string>();
}
template <typename Field>
void set_bool(Field& field, const json& value) {
  if (!value.is_boolean()) throw DoesNotCompile();
  field = value.get<bool>();
}

void set_argument(Plugin& plugin, const std::string& name, const json& value,
                  const TemporaryFolder& folder) {
  if (value.is_null()) return;
  const std::map<std::string, std::function<void()>> setters = {
      {"hf_ds_config", [&] { plugin.hf_ds_config = source_of(value, folder); }},
      {"gradient_accumulation_steps",
       [&] { set_number(plugin.gradient_accumulation_steps, value); }},
      {"gradient_clipping", [&] { set_number(plugin.gradient_clipping, value); }},
      {"zero_stage",
       [&] {
         if (!value.is_number_integer()) throw DoesNotCompile();
         plugin.zero_stage = value.get<int64_t>();
       }},
      {"is_train_batch_min", [&] { set_bool(plugin.is_train_batch_min, value); }},
      {"offload_optimizer_device", [&] { set_text(plugin.offload_optimizer_device, value); }},
      {"offload_param_device", [&] { set_text(plugin.offload_param_device, value); }},
      {"offload_optimizer_nvme_path", [&] { set_text(plugin.offload_optimizer_nvme_path, value); }},
      {"offload_param_nvme_path", [&] { set_text(plugin.offload_param_nvme_path, value); }},
      {"zero3_init_flag", [&] { set_bool(plugin.zero3_init_flag, value); }},
      {"zero3_save_16bit_model", [&] { set_bool(plugin.zero3_save_16bit_model, value); }},
      {"transformer_moe_cls_names", [&] { set_text(plugin.transformer_moe_cls_names, value); }},
      {"enable_msamp", [&] { set_bool(plugin.enable_msamp, value); }},
      {"msamp_opt_level", [&] { set_text(plugin.msamp_opt_level, value); }},
  };
  const auto setter = setters.find(name);
  if (setter == setters.end()) throw CaseError("kwargs: unknown " + name);
  setter->second();
}

Plugin given_plugin(const json& kwargs, const TemporaryFolder& folder) {
  Plugin plugin;
  for (const auto& [name, value] : kwargs.items()) set_argument(plugin, name, value, folder);
  return plugin;
}

Plugin plugin_of(const json& kwargs, const Environment& environment,
                 const TemporaryFolder& folder) {
  HostFiles files;
  return resolve(given_plugin(kwargs, folder), environment, files);
}

// ---- The plugin's fields in the format of the vector file.

template <typename T>
json value_json(const T& value) {
  if constexpr (requires { value.has_value(); }) {
    return value ? value_json(*value) : json();
  } else if constexpr (requires { value.valueless_by_exception(); }) {
    return std::visit([](const auto& one) { return value_json(one); }, value);
  } else {
    return value;
  }
}

json fields_json(const Plugin& plugin) {
  json fields = json::object();
  visit_fields(plugin, [&](const std::string& name, const auto& field) {
    if (name != "hidden_size") fields[name] = value_json(field);
  });
  return fields;
}

json state_json(const HfDeepSpeedConfig& config) {
  return {{"stage", plain(config.stage())},
          {"is_zero2", config.is_zero2()},
          {"is_zero3", config.is_zero3()},
          {"is_offload", config.is_offload()}};
}

DeepSpeedValues values_of(const json& arguments) {
  DeepSpeedValues values;
  const json kwargs = arguments.value("kwargs", json::object());
  for (const auto& [key, value] : kwargs.items()) {
    values[key] = Json(value);
  }
  return values;
}

// What a call gives back; nothing where it only changes the configuration.
std::optional<json> call_config(HfDeepSpeedConfig& config, const std::string& method,
                                const json& arguments) {
  const auto key = [&] { return string_field(arguments, "key"); };
  if (method == "get_value") {
    return plain(config.get_value(key(), Json(arguments.value("default", json()))));
  }
  if (method == "find_config_node") {
    const HfDeepSpeedConfig::Node node = config.find_config_node(key());
    return json::array({node.object != nullptr ? plain(*node.object) : json(), node.key});
  }
  if (method == "is_true") return config.is_true(key());
  if (method == "is_false") return config.is_false(key());
  if (method == "del_config_sub_tree") {
    config.del_config_sub_tree(key(), bool_field_or(arguments, "must_exist", false));
  } else if (method == "set_stage_and_offload") {
    config.set_stage_and_offload();
  } else if (method == "set") {
    const std::string name = key();
    const HfDeepSpeedConfig::Node node = config.find_config_node(name);
    if (node.object == nullptr) throw CaseError("set: there is no " + name);
    (*node.object)[node.key] = Json(field(arguments, "value"));
  } else {
    throw CaseError("then: unknown " + method);
  }
  return std::nullopt;
}

std::optional<json> call_plugin(Plugin& plugin, const std::string& method, const json& arguments) {
  if (method == "deepspeed_config_process") {
    plugin.deepspeed_config_process(values_of(arguments),
                                    bool_field_or(arguments, "must_match", true));
    return std::nullopt;
  }
  if (method == "fill_match") {
    std::vector<std::string> mismatches =
        arguments.value("mismatches", json()).is_array()
            ? arguments["mismatches"].get<std::vector<std::string>>()
            : std::vector<std::string>();
    plugin.fill_match(string_field(arguments, "key"), mismatches, values_of(arguments),
                      bool_field_or(arguments, "must_match", true));
    return mismatches;
  }
  if (method == "set_mixed_precision") {
    plugin.set_mixed_precision(string_field(arguments, "mode"));
    return std::nullopt;
  }
  if (method == "is_auto") return plugin.is_auto(string_field(arguments, "key"));
  return call_config(plugin.config, method, arguments);
}

// The configuration is in the answer where it changed.
template <typename Call>
json then_json(HfDeepSpeedConfig& config, const Call& call) {
  const Json before = config.config;
  json answer = part([&] {
    const std::optional<json> value = call();
    return value ? json{{"value", *value}} : json::object();
  });
  if (config.config != before) answer["config"] = plain(config.config);
  return answer;
}

json warnings_json(const RecordedWarnings& warnings) {
  json list = json::array();
  for (const std::string& text : plain_texts(warnings)) {
    list.push_back({{"category", "UserWarning"}, {"message", text}});
  }
  return list;
}

// ---- kind: plugin, config

json run_plugin(const json& in) {
  expect_fields(in, {"kind", "env", "kwargs", "then", "note"});
  const TemporaryFolder folder;
  const RecordedWarnings warnings;
  std::optional<Plugin> plugin;
  json out = part([&] {
    plugin = plugin_of(field(in, "kwargs"), variables_of(in, folder), folder);
    return json{{"fields", fields_json(*plugin)},
                {"config", plain(plugin->deepspeed_config())},
                {"state", state_json(plugin->config)}};
  });
  if (plugin && in.contains("then")) {
    out["then"] = json::array();
    for (const json& each : in["then"]) {
      out["then"].push_back(
          then_json(plugin->config, [&] { return call_plugin(*plugin, each.at(0), each.at(1)); }));
    }
  }
  out["warnings"] = warnings_json(warnings);
  return out;
}

json run_config(const json& in) {
  expect_fields(in, {"kind", "config", "then", "note"});
  const TemporaryFolder folder;
  HostFiles files;
  HfDeepSpeedConfig config(source_of(field(in, "config"), folder), &files);
  json out = {
      {"config", plain(config.config)}, {"state", state_json(config)}, {"then", json::array()}};
  for (const json& each : in.value("then", json::array())) {
    const std::string method = each.at(0);
    json answer = then_json(config, [&] { return call_config(config, method, each.at(1)); });
    if (method == "del_config_sub_tree" || method == "set_stage_and_offload" || method == "set") {
      answer["state"] = state_json(config);
    }
    out["then"].push_back(std::move(answer));
  }
  return out;
}

// ---- kind: weakref, moe

json run_weakref(const json& in) {
  expect_fields(in, {"kind", "kwargs", "env", "transformers", "zero3_init_context_manager",
                     "transformers_version", "note"});
  const TemporaryFolder folder;
  Plugin plugin = plugin_of(field(in, "kwargs"), variables_of(in, folder), folder);
  json out = {{"calls", json::array()}, {"config", plain(plugin.deepspeed_config())}};
  std::shared_ptr<const HfDeepSpeedConfig> told;
  // What models are constructed by is kept, and replaced.
  const auto note = [&] {
    if (plugin.dschf == told) return;
    told = plugin.dschf;
    out["calls"].push_back({"unset"});
    out["calls"].push_back({"set", plain(told->config)});
  };
  if (in.contains("zero3_init_context_manager")) {
    {
      const auto scope =
          plugin.zero3_init_context_manager(bool_field(in, "zero3_init_context_manager"));
      note();
      out["inside"] = plugin.is_zero3_init_enabled();
    }
    note();
    out["after"] = plugin.is_zero3_init_enabled();
  } else {
    plugin.set_deepspeed_weakref();
    note();
  }
  out["zero3_init_enabled"] = plugin.is_zero3_init_enabled();
  return out;
}

json run_moe(const json& in) {
  expect_fields(in, {"kind", "transformer_moe_cls_names", "env", "model", "deepspeed_version",
                     "tied", "special", "note"});
  const TemporaryFolder folder;
  const Environment environment = variables_of(in, folder);
  Plugin plugin =
      plugin_of({{"transformer_moe_cls_names", in.value("transformer_moe_cls_names", json())}},
                environment, folder);
  const auto model =
      torch_module_of(field(in, "model"), in.value("tied", json()), in.value("special", json()));
  const std::vector<std::string> classes = plugin.set_moe_leaf_modules(*model, environment);
  return {{"leaves", classes.empty() ? json::array() : json::array({classes})},
          {"transformer_moe_cls_names", value_json(plugin.transformer_moe_cls_names)}};
}

// ---- kind: accelerator

bool is_one_plugin(const json& plugins) {
  return plugins.size() == 1 && plugins.contains("kwargs");
}

json selected_json(const AcceleratorState& state, const json& plugins) {
  if (is_one_plugin(plugins)) return state.get_deepspeed_plugin("").selected();
  json selected = json::object();
  for (const std::string& name : state.deepspeed_plugin_names()) {
    selected[name] = state.get_deepspeed_plugin(name).selected();
  }
  return selected;
}

json accelerator_json(const AcceleratorState& state, const json& plugins) {
  return {{"distributed_type", to_string(state.distributed_type())},
          {"mixed_precision", to_string(state.mixed_precision())},
          {"selected", selected_json(state, plugins)},
          {"deepspeed_enabled_env", state.runtime().environment().get_or(kUseDeepSpeed, "")}};
}

json call_accelerator(AcceleratorState& state, const json& plugins, const std::string& method,
                      const json& argument) {
  if (method == "active") {
    DeepSpeedPlugin& active = get_active_deepspeed_plugin(state);
    json names = json::array();
    for (const std::string& name : state.deepspeed_plugin_names()) {
      if (&state.get_deepspeed_plugin(name) == &active) names.push_back(name);
    }
    return {{"value", names}, {"same_as_accelerator", &active == state.deepspeed_plugin()}};
  }
  if (method == "mixed_precision") {
    const Accelerator second(
        {.mixed_precision = from_string<PrecisionType>(argument.get<std::string>())});
  } else if (method == "select") {
    state.select_deepspeed_plugin(argument.get<std::string>());
  } else if (method == "get") {
    state.get_deepspeed_plugin(argument.get<std::string>());
    return {{"value", json::array({argument})}};
  } else if (method == "select_directly") {
    state.get_deepspeed_plugin(argument.is_string() ? argument.get<std::string>() : "").select();
  } else {
    throw CaseError("then: unknown " + method);
  }
  return accelerator_json(state, plugins);
}

json run_on_a_rank(const json& in, const std::vector<std::string>& names,
                   const TemporaryFolder& folder) {
  const json& plugins = field(in, "plugins");
  Runtime& runtime = Runtime::current();
  for (const auto& [name, value] : variables_of(in, folder).variables()) {
    if (in.value("env", json::object()).contains(name)) runtime.environment().set(name, value);
  }
  AcceleratorOptions options;
  if (in.value("mixed_precision", json()).is_string()) {
    options.mixed_precision = from_string<PrecisionType>(in["mixed_precision"].get<std::string>());
  }
  if (is_one_plugin(plugins)) {
    options.deepspeed_plugin = given_plugin(plugins["kwargs"], folder);
  } else {
    for (const std::string& name : names) {
      options.deepspeed_plugins.emplace_back(name, given_plugin(plugins.at(name), folder));
    }
  }
  const DeepSpeedPlugins given =
      options.deepspeed_plugin
          ? DeepSpeedPlugins{{"", resolve(*options.deepspeed_plugin, runtime.environment(),
                                          runtime.files())}}
          : options.deepspeed_plugins;
  std::unique_ptr<Accelerator> accelerator;
  json out = {{"then", json::array()}};
  out["created"] = part([&] {
    accelerator = std::make_unique<Accelerator>(options);
    return accelerator_json(accelerator->state(), plugins);
  });
  const auto config_of = [&](const std::string& name, const Plugin& otherwise) {
    if (accelerator) {
      return plain(accelerator->state().get_deepspeed_plugin(name).deepspeed_config());
    }
    return plain(resolve(otherwise, runtime.environment(), runtime.files()).deepspeed_config());
  };
  if (accelerator) {
    auto& state = AcceleratorState::get();
    for (const json& each : in.value("then", json::array())) {
      out["then"].push_back(
          part([&] { return call_accelerator(state, plugins, each.at(0), each.at(1)); }));
    }
  }
  for (const auto& [name, plugin] : given) {
    if (name.empty()) {
      out["configs"] = config_of(name, plugin);
    } else {
      out["configs"][name] = config_of(name, plugin);
    }
  }
  return out;
}

// The orders of its keys count no further.
json without_order(json value) {
  if (value.is_object()) value.erase(kOrder);
  for (json& each : value) {
    if (each.is_structured()) each = without_order(std::move(each));
  }
  return value;
}

json run_accelerator(const json& in) {
  expect_fields(in, {"kind", "plugins", "mixed_precision", "env", "then", "note"});
  const TemporaryFolder folder;
  std::vector<std::string> names;
  if (!is_one_plugin(without_order(field(in, "plugins")))) {
    for (const auto& [name, kwargs] : entries_in_order(in["plugins"])) names.push_back(name);
  }
  json bare = in;
  bare["plugins"] = without_order(in["plugins"]);
  return ask_ranks(1, [&](int /*rank*/) { return run_on_a_rank(bare, names, folder); }).front();
}

// ---- kind: prepare

// What `prepare` gives back for an object of that kind.
std::string prepared_class(const std::string& kind) {
  static_assert(std::is_same_v<decltype(std::declval<Accelerator&>().prepare_optimizer(nullptr)),
                               AcceleratedOptimizer>);
  static_assert(std::is_same_v<decltype(std::declval<Accelerator&>().prepare_scheduler(
                                   std::declval<torch::optim::LRScheduler&>())),
                               AcceleratedScheduler>);
  if (kind == "model") return "PreparedModel";
  if (kind == "loader") return "DataLoader";
  return kind.ends_with("optimizer") ? "AcceleratedOptimizer" : "AcceleratedScheduler";
}

json run_prepare(const json& in) {
  expect_fields(in, {"kind", "plugin", "objects", "accelerator", "env", "note"});
  const TemporaryFolder folder;
  Plugin plugin = plugin_of(field(in, "plugin"), variables_of(in, folder), folder);
  const json& accelerator = field(in, "accelerator");
  plugin.set_mixed_precision(accelerator.value("mixed_precision", "no"));
  const json sp = accelerator.value("sp", json());
  // The cases record DeepSpeed's own classes for it, which do not exist here.
  if (sp.is_object() && int_field(sp, "size") > 1) {
    throw Missing("the engine of sequence parallelism");
  }
  DeepSpeedFacts facts = {
      .num_processes = int_field(accelerator, "num_processes"),
      .ranks_per_share = sp.is_object() ? int_field(sp, "size") : 1,
      .split_batches = bool_field(accelerator, "split_batches"),
      .gradient_accumulation_steps = int_field(accelerator, "gradient_accumulation_steps"),
      .has_model = false};
  std::optional<DummyOptim> optimizer;
  std::optional<DummyScheduler> scheduler;
  const json& objects = field(in, "objects");
  for (const json& object : objects) {
    const std::string kind = string_field(object, "kind");
    if (kind == "model") {
      facts.has_model = true;
      if (object.value("config", json()).is_object()) {
        facts.hidden_sizes = hidden_sizes_of(Json(object["config"]));
      }
    } else if (kind == "optimizer" || kind == "dummy_optimizer") {
      facts.has_optimizer = true;
      optimizer.emplace(std::vector<at::Tensor>{},
                        DummyOptimOptions{.lr = object.value("lr", 0.001),
                                          .weight_decay = object.value("weight_decay", 0.0)});
      if (kind == "dummy_optimizer") facts.dummy_optimizer = &*optimizer;
    } else if (kind == "loader") {
      facts.batch_sizes.push_back(optional_int_field(object, "batch_size"));
    } else if (kind == "scheduler" || kind == "dummy_scheduler") {
      facts.has_scheduler = true;
    } else {
      throw CaseError("objects: unknown " + kind);
    }
  }
  const DummyOptim otherwise(std::vector<at::Tensor>{});
  for (const json& object : objects) {
    if (object["kind"] != "dummy_scheduler") continue;
    DummySchedulerOptions options;
    options.total_num_steps = optional_int_field(
        object.contains("total_num_steps") ? object : json{{"total_num_steps", nullptr}},
        "total_num_steps");
    options.warmup_num_steps = object.value("warmup_num_steps", int64_t{0});
    const json callable = object.value("lr_scheduler_callable", object.value("callable", json()));
    if (!callable.is_null() && callable != false) {
      options.lr_scheduler_callable = [](torch::optim::Optimizer&) {
        return std::unique_ptr<torch::optim::LRScheduler>();
      };
    }
    scheduler.emplace(optimizer ? *optimizer : otherwise, options);
    facts.dummy_scheduler = &*scheduler;
  }
  int64_t steps = facts.gradient_accumulation_steps;
  json log = json::array();
  json out = part([&] {
    const DeepSpeedCompletion completion = complete(plugin, facts);
    steps = completion.gradient_accumulation_steps;
    log = completion.notes;
    json result = json::array();
    for (const json& object : objects) result.push_back(prepared_class(object["kind"]));
    // No sequence is divided here, so no attention is replaced.
    return json{{"result", std::move(result)}, {"ulysses", json::array()}};
  });
  out["config"] = plain(plugin.deepspeed_config());
  out["gradient_accumulation_steps"] = steps;
  out["log"] = log;
  return out;
}

// ---- kind: dummy

json run_dummy(const json& in) {
  expect_fields(in, {"kind", "class", "kwargs", "note"});
  json kwargs = in.value("kwargs", json::object());
  const auto take = [&](const char* name, const json& otherwise) {
    const json value = kwargs.value(name, otherwise);
    kwargs.erase(name);
    return value;
  };
  const std::string type = string_field(in, "class");
  const double lr = type == "DummyOptim" ? take("lr", 0.001).get<double>() : 0.001;
  const double weight_decay = type == "DummyOptim" ? take("weight_decay", 0).get<double>() : 0;
  const auto rest = [&] {
    std::map<std::string, Json> others;
    for (const auto& [name, value] : kwargs.items()) others[name] = Json(value);
    return others;
  };
  const auto rest_json = [](const std::map<std::string, Json>& others) {
    json object = json::object();
    for (const auto& [name, value] : others) object[name] = plain(value);
    return object;
  };
  if (type == "DummyOptim") {
    const DummyOptim optimizer(std::vector<at::Tensor>{},
                               {.lr = lr, .weight_decay = weight_decay, .kwargs = rest()});
    return {{"fields",
             {{"params", json::array()},
              {"lr", optimizer.lr},
              {"weight_decay", optimizer.weight_decay},
              {"kwargs", rest_json(optimizer.kwargs)}}}};
  }
  if (type != "DummyScheduler") throw CaseError("class: unknown " + type);
  const DummyOptim optimizer(std::vector<at::Tensor>{});
  DummySchedulerOptions options;
  const json total = take("total_num_steps", json());
  if (total.is_number_integer()) options.total_num_steps = total.get<int64_t>();
  options.warmup_num_steps = take("warmup_num_steps", 0).get<int64_t>();
  if (!take("lr_scheduler_callable", json()).is_null()) {
    throw CaseError("lr_scheduler_callable: unknown");
  }
  options.kwargs = rest();
  const DummyScheduler scheduler(optimizer, options);
  return {{"fields",
           {{"optimizer", nullptr},
            {"total_num_steps", value_json(scheduler.total_num_steps)},
            {"warmup_num_steps", scheduler.warmup_num_steps},
            {"lr_scheduler_callable", nullptr},
            {"kwargs", rest_json(scheduler.kwargs)}}}};
}

json run_case(const json& in) {
  const std::string kind = string_field(in, "kind");
  if (kind == "plugin") return run_plugin(in);
  if (kind == "config") return run_config(in);
  if (kind == "weakref") return run_weakref(in);
  if (kind == "moe") return run_moe(in);
  if (kind == "accelerator") return run_accelerator(in);
  if (kind == "prepare") return run_prepare(in);
  if (kind == "dummy") return run_dummy(in);
  if (std::optional<json> answer = run_deepspeed_objects(in)) return *std::move(answer);
  throw CaseError("kind: unknown " + kind);
}

const FamilyRegistration kRegistration("deepspeed_plugin", &run_case,
                                       [](const json& /*in*/) { return Tolerance(); }, {"plugins"});

}  // namespace
}  // namespace accelerate::golden
