#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "integration_tests/golden/deepspeed_initialize.h"
#include "integration_tests/golden/errors.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/rules.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

constexpr char kFamily[] = "deepspeed_plugin";

bool is_kind(const json& in, const char* kind) { return in.at("kind") == kind; }

// ---- What a plugin is given.

const json& arguments(const json& in) {
  static const json kNothing = json::object();
  const char* const place = is_kind(in, "prepare") ? "plugin" : "kwargs";
  return in.contains(place) && in[place].is_object() ? in[place] : kNothing;
}

std::string variable(const json& in, const char* name) {
  const json env = in.value("env", json::object());
  return env.value(name, json()).is_string() ? env[name].get<std::string>() : "";
}

bool has_variable(const json& in, const char* name) {
  return in.value("env", json::object()).contains(name);
}

// By argument, or else by variable; null without both.
json given(const json& in, const char* argument, const char* variable_name) {
  const json value = arguments(in).value(argument, json());
  if (!value.is_null()) return value;
  return has_variable(in, variable_name) ? json(variable(in, variable_name)) : json();
}

// The configuration that is given, as far as it is an object.
json given_config(const json& in) {
  const json source = arguments(in).value("hf_ds_config", json());
  if (!source.is_object()) return json();
  for (const char* form : {"$base64", "$json", "$config"}) {
    if (source.contains(form)) return source[form];
  }
  if (source.contains("$file"))
    return json::parse(source["$file"].get<std::string>(), nullptr, false);
  return source;
}

bool says(const json& out, const std::string& words) {
  return out.contains("error") && absl::StrContains(out["error"].value("message", ""), words);
}

bool is_plugin(const json& in) { return is_kind(in, "plugin"); }

void refuse_plugin(json& out, const std::vector<std::string>& says) {
  out = our_error({"ValueError"}, says);
  out["warnings"] = json::array();
}

void erase_order(json& value) {
  if (value.is_object()) value.erase(kOrder);
  for (json& each : value) {
    if (each.is_structured()) erase_order(each);
  }
}

// The configuration that a plugin has before prepare fills anything in.
json plain_config(const json& kwargs) {
  const json infinite = {{"$float", "inf"}};
  json config = given_config({{"kind", "plugin"}, {"kwargs", kwargs}});
  if (config.is_object()) {
    if (!config.contains("gradient_accumulation_steps")) config["gradient_accumulation_steps"] = 1;
    config["steps_per_print"] = infinite;
    erase_order(config);
    if (!config.value("zero_optimization", json::object()).is_object()) return config;
    json& zero = config["zero_optimization"];
    const auto fill = [&](json& block, const char* key, const json& value) {
      if (block.value(key, json()) == "auto") block[key] = value;
    };
    fill(zero, "stage", kwargs.value("zero_stage", 2));
    fill(zero, "stage3_gather_16bit_weights_on_model_save",
         kwargs.value("zero3_save_16bit_model", false));
    for (const std::string kind : {"optimizer", "param"}) {
      if (!zero.value("offload_" + kind, json()).is_object()) continue;
      json& block = zero["offload_" + kind];
      fill(block, "device", kwargs.value("offload_" + kind + "_device", "none"));
      fill(block, "nvme_path", kwargs.value("offload_" + kind + "_nvme_path", "none"));
    }
    return config;
  }
  const auto offload = [&](const std::string& kind) {
    const json device = kwargs.value("offload_" + kind + "_device", "none");
    const json path = kwargs.value("offload_" + kind + "_nvme_path", "none");
    return json{{"device", device}, {"nvme_path", device == "nvme" ? path : json()}};
  };
  return {
      {"train_batch_size", "auto"},
      {"train_micro_batch_size_per_gpu", "auto"},
      {"gradient_accumulation_steps", kwargs.value("gradient_accumulation_steps", json("auto"))},
      {"zero_optimization",
       {{"stage", kwargs.value("zero_stage", 2)},
        {"offload_optimizer", offload("optimizer")},
        {"offload_param", offload("param")},
        {"stage3_gather_16bit_weights_on_model_save",
         kwargs.value("zero3_save_16bit_model", false)}}},
      {"gradient_clipping", kwargs.value("gradient_clipping", json("auto"))},
      {"steps_per_print", infinite}};
}

void add_precision(json& config, const std::string& mode) {
  const bool is_bf16 = mode == "bf16" || mode == "fp8";
  if (mode == "fp16" && !config.contains("fp16")) {
    config["fp16"] = {{"enabled", true}, {"auto_cast", true}};
  }
  for (const char* name : {"fp16", "bf16"}) {
    const bool is_on = name == mode || (is_bf16 && std::string(name) == "bf16");
    if (!config.contains(name)) config[name] = {{"enabled", is_on}};
    if (config[name].value("enabled", json()) == "auto") config[name]["enabled"] = is_on;
  }
}

// ---- Fields.

bool is_whole_number(const json& value) {
  int64_t number = 0;
  if (value.is_string()) return absl::SimpleAtoi(value.get<std::string>(), &number) && number >= 1;
  return value.is_number_integer() && value.get<int64_t>() >= 1;
}

bool accumulates_in_other_words(const json& in) {
  if (!is_plugin(in)) return false;
  const json steps =
      given(in, "gradient_accumulation_steps", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS");
  return !steps.is_null() && steps != "auto" && !steps.is_number_float() && !is_whole_number(steps);
}

void refuse_the_number(const json& /*in*/, json& out) {
  refuse_plugin(out, {"nor \"auto\"", "gradient_accumulation_steps must be at least 1"});
}

bool has_another_stage(const json& in) {
  if (!is_plugin(in)) return false;
  const json stage = given(in, "zero_stage", "ACCELERATE_DEEPSPEED_ZERO_STAGE");
  int64_t number = 0;
  if (stage.is_number_integer()) number = stage;
  if (stage.is_string() && !absl::SimpleAtoi(stage.get<std::string>(), &number)) return false;
  const json config = given_config(in);
  if (config.is_object()) {
    const json zero = config.value("zero_optimization", json::object());
    const json own = zero.is_object() ? zero.value("stage", json()) : json();
    if (own.is_number()) number = own.get<int64_t>();
  }
  return number < 0 || number > 3;
}

void refuse_the_stage(const json& /*in*/, json& out) {
  refuse_plugin(out, {"but there are 0, 1, 2 and 3 only"});
}

bool has_a_value_of_another_type(const json& in) {
  if (!is_plugin(in)) return false;
  for (const auto& [name, value] : arguments(in).items()) {
    const bool is_flag = name == "zero3_init_flag" || name == "zero3_save_16bit_model" ||
                         name == "enable_msamp" || name == "is_train_batch_min";
    if (is_flag && !value.is_boolean() && !value.is_null()) return true;
    const bool is_text = absl::StartsWith(name, "offload_") || name == "msamp_opt_level" ||
                         name == "transformer_moe_cls_names";
    if (is_text && !value.is_string() && !value.is_null()) return true;
    if (name == "zero_stage" && !value.is_number_integer() && !value.is_null()) return true;
    if (name == "gradient_accumulation_steps" && value.is_number_float()) return true;
  }
  return false;
}

void leave_it_to_the_compiler(const json& /*in*/, json& out) {
  out = {{"refused_by_compiler", true}};
}
void leave_the_plugin_to_the_compiler(const json& /*in*/, json& out) {
  out = {{"refused_by_compiler", true}, {"warnings", json::array()}};
}

// A device that is not one, or nvme without a folder.
bool moves_nowhere(const json& in) {
  if (!is_plugin(in)) return false;
  const json config = given_config(in);
  for (const std::string kind : {"optimizer", "param"}) {
    const std::string upper = absl::AsciiStrToUpper(kind);
    json device = given(in, ("offload_" + kind + "_device").c_str(),
                        ("ACCELERATE_DEEPSPEED_OFFLOAD_" + upper + "_DEVICE").c_str());
    json path = given(in, ("offload_" + kind + "_nvme_path").c_str(),
                      ("ACCELERATE_DEEPSPEED_OFFLOAD_" + upper + "_NVME_PATH").c_str());
    if (config.is_object() && config.value("zero_optimization", json()).is_object()) {
      const json block = config["zero_optimization"].value("offload_" + kind, json::object());
      if (!block.is_object()) continue;
      const auto take = [&](const char* name, json& value) {
        const json own = block.value(name, json());
        if (!own.is_null() && own != "auto") value = own;
      };
      take("device", device);
      take("nvme_path", path);
    }
    if (device.is_null()) continue;
    if (device != "none" && device != "cpu" && device != "nvme") return true;
    if (device == "nvme" && (path.is_null() || path == "none" || path == "")) return true;
  }
  return false;
}

void refuse_the_device(const json& /*in*/, json& out) {
  if (!out.contains("error")) {
    refuse_plugin(out, {"it is one of none, cpu, nvme", "does not say in which folder"});
  }
}

// ---- Flags, names and numbers as texts.

bool has_a_flag_in_other_words(const json& in) {
  return is_plugin(in) && (has_variable(in, "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL") ||
                           has_variable(in, "ACCELERATE_FP8_BACKEND"));
}

void read_it_as_others(const json& in, json& out) {
  if (!out.contains("fields")) return;
  const std::string flag =
      absl::AsciiStrToLower(variable(in, "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL"));
  const bool is_on =
      flag == "y" || flag == "yes" || flag == "t" || flag == "on" || flag == "1" || flag == "true";
  json& zero = out["config"]["zero_optimization"];
  if (is_on && arguments(in).value("zero3_save_16bit_model", json()).is_null() &&
      !given_config(in).is_object()) {
    out["fields"]["zero3_save_16bit_model"] = true;
    zero["stage3_gather_16bit_weights_on_model_save"] = true;
  }
  if (absl::EqualsIgnoreCase(variable(in, "ACCELERATE_FP8_BACKEND"), "MSAMP") &&
      arguments(in).value("enable_msamp", json()).is_null() && out["fields"]["zero_stage"] != 3) {
    out["fields"]["enable_msamp"] = true;
    if (!out["config"].contains("msamp")) {
      out["config"]["msamp"] = {{"enabled", true}, {"opt_level", out["fields"]["msamp_opt_level"]}};
    }
  }
}

bool has_a_number_in_a_text(const json& in) {
  return is_plugin(in) && (arguments(in).value("gradient_accumulation_steps", json()).is_string() ||
                           arguments(in).value("gradient_clipping", json()).is_string());
}

void read_the_number(const json& /*in*/, json& out) {
  if (!out.contains("fields")) return;
  for (json* place : {&out["fields"], &out["config"]}) {
    for (const char* name : {"gradient_accumulation_steps", "gradient_clipping"}) {
      const json text = place->value(name, json());
      double number = 0;
      if (!text.is_string() || !absl::SimpleAtod(text.get<std::string>(), &number)) continue;
      (*place)[name] = number;
    }
  }
}

// ---- Calls.

bool asks_for_another_precision(const json& in) {
  if (!in.contains("then") || is_kind(in, "accelerator")) return false;
  return std::any_of(in["then"].begin(), in["then"].end(), [](const json& each) {
    const std::string mode = each.at(1).is_object() ? each.at(1).value("mode", "no") : "no";
    return mode != "no" && mode != "fp8" && mode != "fp16" && mode != "bf16";
  });
}

void refuse_the_precision(const json& in, json& out) {
  for (size_t i = 0; i < in["then"].size() && out.contains("then"); ++i) {
    const json& arguments = in["then"][i].at(1);
    if (!arguments.is_object() || !arguments.contains("mode")) continue;
    const std::string mode = arguments["mode"];
    if (mode == "no" || mode == "fp8" || mode == "fp16" || mode == "bf16") continue;
    out["then"][i] = our_error({"ValueError"}, {"PrecisionType"});
  }
}

bool computes_by_rocm(const json& in) {
  if (!in.contains("then") || is_kind(in, "accelerator")) return false;
  return std::any_of(in["then"].begin(), in["then"].end(), [](const json& each) {
    return each.at(1).is_object() && each.at(1).value("rocm", json()) == true;
  });
}

void communicate_as_before(const json& in, json& out) {
  const json given = given_config(in);
  if (!out.contains("then") || (given.is_object() && given.contains("communication_data_type"))) {
    return;
  }
  for (json& each : out["then"]) {
    if (each.contains("config")) each["config"].erase("communication_data_type");
  }
}

bool is_of_an_old_version(const json& in) {
  return is_kind(in, "moe") && absl::StartsWith(in.value("deepspeed_version", ""), "0.1") &&
         in["deepspeed_version"].get<std::string>() < "0.14";
}

void need_no_version(const json& in, json& out) {
  if (!says(out, "DeepSpeed version must be")) return;
  const json given = in.value("transformer_moe_cls_names", json());
  const std::string names = given.is_string()
                                ? given.get<std::string>()
                                : variable(in, "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES");
  const std::vector<std::string> classes = absl::StrSplit(names, ',');
  out = {{"leaves", json::array({classes})}, {"transformer_moe_cls_names", names}};
}

// ---- After an error.

// Calls that fail, and fill the configuration in part; those after them begin with that part.
bool fails_halfway(const json& in) { return in.contains("then"); }

void change_nothing(const json& in, json& out) {
  if (is_kind(in, "accelerator") || !out.contains("then")) return;
  for (json& each : out["then"]) {
    if (each.contains("error")) each.erase("config");
  }
}

bool is_of_accelerator(const json& in) { return is_kind(in, "accelerator"); }

// What calls of set_mixed_precision leave behind. `keeps_parts`: also those that fail.
class PrecisionModel {
 public:
  PrecisionModel(json config, bool keeps_parts)
      : config_(std::move(config)), keeps_parts_(keeps_parts) {}

  struct Call {
    json config;  // null where it did not change
    bool fails;
  };
  Call call(const std::string& mode) {
    const json before = config_;
    const bool is_bf16 = mode == "bf16" || mode == "fp8";
    if (mode == "fp16" && !config_.contains("fp16")) {
      config_["fp16"] = {{"enabled", true}, {"auto_cast", true}};
    }
    if (is_bf16 && !config_.contains("bf16")) config_["bf16"] = {{"enabled", true}};
    const char* const other = mode == "fp16" ? "bf16" : "fp16";
    const json block = config_.value(other, json::object());
    const json enabled = block.is_object() ? block.value("enabled", json()) : json();
    const bool fails = mode != "no" && (enabled == true || enabled == "true" || enabled == "True");
    if (fails && !keeps_parts_) config_ = before;
    if (!fails) add_precision(config_, mode);
    return {.config = config_ == before ? json() : config_, .fails = fails};
  }

 private:
  json config_;
  const bool keeps_parts_;
};

// Calls of set_mixed_precision alone, of which some may fail.
bool sets_precisions(const json& in) {
  if (!is_plugin(in) || !in.contains("then")) return false;
  return std::all_of(in["then"].begin(), in["then"].end(), [](const json& each) {
    const json mode = each.at(1).is_object() ? each.at(1).value("mode", json()) : json();
    return each.at(0) == "set_mixed_precision" &&
           (mode == "no" || mode == "fp8" || mode == "fp16" || mode == "bf16");
  });
}

// Where it is what is left of calls that failed.
void begin_as_before(const json& in, json& out) {
  if (!out.contains("then") || !out.contains("config")) return;
  PrecisionModel recorded(out["config"], /*keeps_parts=*/true);
  PrecisionModel promised(out["config"], /*keeps_parts=*/false);
  std::vector<PrecisionModel::Call> calls;
  for (size_t i = 0; i < out["then"].size(); ++i) {
    const std::string mode = in["then"][i].at(1).at("mode");
    const bool fails = out["then"][i].contains("error");
    const PrecisionModel::Call modelled = recorded.call(mode);
    // The rule before this one took the configurations of failing calls away.
    const bool is_seen = fails || modelled.config == out["then"][i].value("config", json());
    if (modelled.fails != fails || !is_seen) return;
    calls.push_back(promised.call(mode));
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    if (!calls[i].fails) out["then"][i] = json::object();
    if (!calls[i].config.is_null()) out["then"][i]["config"] = calls[i].config;
  }
}

void leave_the_configurations(const json& in, json& out) {
  if (!out["created"].contains("error")) return;
  const json& plugins = in["plugins"];
  if (plugins.size() == 1 && plugins.contains("kwargs")) {
    out["configs"] = plain_config(plugins["kwargs"]);
    return;
  }
  for (const auto& [name, kwargs] : plugins.items()) {
    if (name != kOrder) out["configs"][name] = plain_config(kwargs);
  }
}

bool prepares(const json& in) { return is_kind(in, "prepare"); }

void keep_the_configuration(const json& in, json& out) {
  if (!out.contains("error")) return;
  json config = plain_config(arguments(in));
  add_precision(config, in["accelerator"].value("mixed_precision", "no"));
  out["config"] = config;
}

// ---- Precision.

bool trains_in_fp8(const json& in) {
  return is_kind(in, "accelerator") && in.value("mixed_precision", json()) == "fp8";
}

void compute_natively(const json& in, json& out) {
  if (!says(out["created"], "to be installed")) return;
  const json& plugins = in["plugins"];
  const bool is_one = plugins.size() == 1 && plugins.contains("kwargs");
  if (!is_one) return;
  out["created"] = {{"distributed_type", "DEEPSPEED"},
                    {"mixed_precision", "bf16"},
                    {"selected", true},
                    {"deepspeed_enabled_env", "true"}};
  out["configs"] = plain_config(plugins["kwargs"]);
  add_precision(out["configs"], "fp8");
}

// ---- What there is instead of Python packages.

bool is_without_transformers(const json& in) {
  return is_kind(in, "weakref") && in.value("transformers", json()) == false;
}

void need_no_transformers(const json& in, json& out) {
  if (!out.contains("error")) return;
  json config = plain_config(arguments(in));
  const bool is_zero3 = config["zero_optimization"].value("stage", json()) == 3;
  out = {{"zero3_init_enabled", arguments(in).value("zero3_init_flag", is_zero3) && is_zero3},
         {"config", config}};
  for (const char* key : {"gradient_accumulation_steps", "train_micro_batch_size_per_gpu"}) {
    if (config.value(key, json("auto")) == "auto") config[key] = 1;
  }
  if (config.value("train_batch_size", json()) == "auto") config.erase("train_batch_size");
  if (in.contains("zero3_init_context_manager")) {
    const bool is_on = is_zero3 && in["zero3_init_context_manager"] == true;
    const bool before = out["zero3_init_enabled"];
    out["inside"] = is_on;
    out["after"] = before;
    out["calls"] = json::array();
    if (is_on == before) return;
  }
  out["calls"] = json::array({json::array({"unset"}), json::array({"set", config})});
}

bool has_objects_of_deepspeed(const json& in) { return is_kind(in, "prepare"); }

// ---- Optimizers on the host.

bool is_of_bitsandbytes(const json& in) {
  return is_kind(in, "map_optimizer") && absl::StartsWith(in.value("optimizer", ""), "bnb.");
}

std::string optimizer_class(const json& in) {
  const std::string name = in.value("optimizer", "");
  return name.substr(name.rfind('.') + 1);
}

bool is_no_adam(const json& in) {
  if (!is_kind(in, "map_optimizer") || is_of_bitsandbytes(in)) return false;
  const std::string name = optimizer_class(in);
  return name != "Adam" && name != "AdamW" && name != "Adagrad";
}

void keep_the_class(const json& in, json& out) { out["class"] = optimizer_class(in); }

// ---- Optimizers with modes.

bool has_one_mode(const json& in) {
  if (!is_kind(in, "optimizer_mode")) return false;
  for (const char* which : {"optimizer", "inside"}) {
    const json methods = in.value(which, json());
    if (methods.is_array() && methods.size() == 1) return true;
  }
  return false;
}

// ---- Batches that contradict each other.

bool contradicts_its_batches(const json& in) {
  if (!is_kind(in, "prepare")) return false;
  const json config = given_config(in);
  if (!config.is_object()) return false;
  const json batch = config.value("train_batch_size", json());
  const json micro = config.value("train_micro_batch_size_per_gpu", json());
  const json steps = config.value("gradient_accumulation_steps", json(1));
  if (!batch.is_number() || !steps.is_number()) return false;
  const json& accelerator = in["accelerator"];
  const json sp = accelerator.value("sp", json());
  const int64_t shares = accelerator["num_processes"].get<int64_t>() /
                         (sp.is_object() ? sp.value("size", int64_t{1}) : 1);
  const int64_t others = steps.get<int64_t>() * shares;
  return micro.is_number() ? batch.get<int64_t>() != micro.get<int64_t>() * others
                           : micro.is_null() && batch.get<int64_t>() % others != 0;
}

// Nothing comes back after an error.
void give_nothing_back(json& out) {
  for (const char* name : {"result", "initialize", "ulysses"}) out.erase(name);
}

void refuse_the_batches(const json& in, json& out) {
  if (out.contains("error")) return;
  give_nothing_back(out);
  out["error"] = our_error({"ValueError"}, {"train_batch_size is"})["error"];
  json config = plain_config(arguments(in));
  add_precision(config, in["accelerator"].value("mixed_precision", "no"));
  out["config"] = config;
  out["gradient_accumulation_steps"] = in["accelerator"]["gradient_accumulation_steps"];
  out["log"] = json::array();
}

// Batches that are split among more ranks than they have samples.
bool splits_too_few_samples(const json& in) {
  if (!is_kind(in, "prepare") || !bool_field_or(in["accelerator"], "split_batches", false)) {
    return false;
  }
  return std::any_of(in["objects"].begin(), in["objects"].end(), [&](const json& object) {
    const json size = object.value("batch_size", json());
    return object.value("kind", "") == "loader" && size.is_number_integer() &&
           size < in["accelerator"]["num_processes"];
  });
}

void refuse_to_split(const json& in, json& out) {
  const bool is_recorded =
      !out.contains("error") && out["config"].value("train_micro_batch_size_per_gpu", json()) == 0;
  if (!is_recorded) return;
  give_nothing_back(out);
  out["error"] = our_error({"ValueError"}, {"cannot be split among"})["error"];
  json config = plain_config(arguments(in));
  add_precision(config, in["accelerator"].value("mixed_precision", "no"));
  out["config"] = config;
}

// Which loader's batches count is told where they differ, with its bracket closed.
void say_whose_batches_count(const json& in, json& out) {
  if (!out.contains("log")) return;
  std::set<json> sizes;
  for (const json& object : in.value("objects", json::array())) {
    if (object.value("kind", "") == "loader") sizes.insert(object.value("batch_size", json()));
  }
  json log = json::array();
  for (const json& line : out["log"]) {
    std::string text = line;
    if (absl::StrContains(text, "passed both train and evaluation") && sizes.size() < 2) continue;
    log.push_back(absl::StrReplaceAll(text, {{"True will decide", "True) will decide"},
                                             {"False will decide", "False) will decide"}}));
  }
  out["log"] = log;
}

// What is told before an error is told with it.
void say_nothing_before_an_error(const json& in, json& out) {
  if (!out.contains("error")) return;
  out["log"] = json::array();
  out["gradient_accumulation_steps"] = in["accelerator"]["gradient_accumulation_steps"];
}

}  // namespace

std::vector<Decision> deepspeed_plugin_rules() {
  return {
      {kFamily, "accumulation in other words",
       "HF Accelerate keeps a text that is not a whole number, which DeepSpeed does not know; here "
       "it "
       "is an error",
       &accumulates_in_other_words, &refuse_the_number},
      {kFamily, "another stage",
       "HF Accelerate takes any number for a stage; here there are 0 to 3", &has_another_stage,
       &refuse_the_stage},
      {kFamily, "offloading to nowhere",
       "HF Accelerate takes any text for a device, and nvme without a folder; here it is an error",
       &moves_nowhere, &refuse_the_device},
      {kFamily, "values of another type",
       "HF Accelerate takes them, and fails later or not at all; here the compiler refuses them",
       &has_a_value_of_another_type, &leave_the_plugin_to_the_compiler},
      {kFamily, "flags in other words",
       "HF Accelerate reads `true` and `MSAMP` alone; here every spelling of them counts",
       &has_a_flag_in_other_words, &read_it_as_others},
      {kFamily, "numbers in a text",
       "HF Accelerate keeps a number that is given as a text; here it is the number",
       &has_a_number_in_a_text, &read_the_number},
      {kFamily, "another precision",
       "HF Accelerate takes any text for a precision, and turns both off; here it is an error",
       &asks_for_another_precision, &refuse_the_precision},
      {kFamily, "ROCm",
       "HF Accelerate communicates in another precision where PyTorch is made for ROCm; nothing "
       "here is",
       &computes_by_rocm, &communicate_as_before},
      {kFamily, "versions of DeepSpeed",
       "HF Accelerate needs DeepSpeed 0.14 for layers of experts; here there is no DeepSpeed",
       &is_of_an_old_version, &need_no_version},
      {kFamily, "a call that fails",
       "HF Accelerate keeps what it filled in before the error; here the configuration is as it "
       "was",
       &fails_halfway, &change_nothing},
      {kFamily, "calls after a precision that was refused",
       "HF Accelerate begins them with what it filled in before the error; here the configuration "
       "is as it was",
       &sets_precisions, &begin_as_before},
      {kFamily, "fp8 without packages",
       "HF Accelerate needs packages for fp8; here it is computed natively", &trains_in_fp8,
       &compute_natively},
      {kFamily, "an Accelerator that fails",
       "HF Accelerate leaves configurations that are half filled in; here they are as they were",
       &is_of_accelerator, &leave_the_configurations},
      {kFamily, "a preparation that fails",
       "HF Accelerate leaves a configuration that is half filled in; here it is as it was",
       &prepares, &keep_the_configuration},
      {kFamily, "batches that contradict each other",
       "HF Accelerate leaves it to DeepSpeed to refuse them; here preparing does",
       &contradicts_its_batches, &refuse_the_batches},
      {kFamily, "batches smaller than the ranks",
       "HF Accelerate splits them into micro-batches of 0; here it is an error",
       &splits_too_few_samples, &refuse_to_split},
      {kFamily, "whose batches count",
       "HF Accelerate tells it, with a bracket that stays open, also where all loaders have the "
       "same batches; here it is told where they differ",
       &prepares, &say_whose_batches_count},
      {kFamily, "what is told before an error",
       "HF Accelerate logs what it decided, and then fails; here the error comes alone", &prepares,
       &say_nothing_before_an_error},
      {kFamily, "DeepSpeed's objects",
       "HF Accelerate hands the objects to deepspeed.initialize, and gives DeepSpeed's back; here "
       "the engine is native, and gives the library's",
       &has_objects_of_deepspeed, &give_objects_of_the_library},
      {kFamily, "construction without transformers",
       "HF Accelerate needs the package transformers, also where nothing is divided; here nothing "
       "does",
       &is_without_transformers, &need_no_transformers},
      {kFamily, "bitsandbytes", "HF Accelerate takes its optimizers; it does not exist for C++",
       &is_of_bitsandbytes, &leave_it_to_the_compiler},
      {kFamily, "optimizers with one mode",
       "HF Accelerate asks the optimizer for each of its two modes; here an optimizer has both or "
       "none",
       &has_one_mode, &leave_it_to_the_compiler},
      {kFamily, "other optimizers on the host",
       "HF Accelerate makes an Adam of them, with another arithmetic; here the host computes what "
       "the device would",
       &is_no_adam, &keep_the_class},
  };
}

}  // namespace accelerate::golden
