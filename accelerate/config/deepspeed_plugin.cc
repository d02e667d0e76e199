#include "accelerate/config/deepspeed_plugin.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "accelerate/base/enums.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/number_text.h"
#include "accelerate/config/fsdp_plugin.h"
#include "accelerate/config/option_fields.h"
#include "accelerate/config/zero_config.h"
#include "accelerate/config/zero_key_rows.h"
#include "accelerate/values/texts.h"

namespace accelerate {
namespace {

using Json = nlohmann::ordered_json;
using Plugin = DeepSpeedPlugin;

constexpr char kAuto[] = "auto";
constexpr char kNone[] = "none";
constexpr char kConfigFields[] = "ACCELERATE_CONFIG_DS_FIELDS";

// ---- Fields from variables.

std::string variable_of(const char* option) { return options::option(option).variable_name(); }

// A number, or "auto".
template <typename Number>
void read_number(std::optional<std::variant<Number, std::string>>& field, const char* name,
                 const char* what, std::optional<Number> (*parse)(std::string_view text)) {
  const auto* text = std::get_if<std::string>(&*field);
  if (text == nullptr || *text == kAuto) return;
  const std::optional<Number> number = parse(*text);
  TORCH_CHECK_VALUE(number, name, ", or ", variable_of(name), ", is \"", *text,
                    "\", which is neither ", what, " nor \"auto\"");
  field = *number;
}

// prepare() takes the classes of experts, which it looks up in a model.
void take_fields(Plugin& plugin, const Environment& environment) {
  fill_fields(plugin, options::Section::kDeepSpeed, environment, {"transformer_moe_cls_names"});
  read_number(plugin.gradient_accumulation_steps, "gradient_accumulation_steps", "a whole number",
              parse_int);
  read_number(plugin.gradient_clipping, "gradient_clipping", "a number", parse_float);
  if (!plugin.enable_msamp) {
    plugin.enable_msamp =
        absl::EqualsIgnoreCase(environment.get_or(variable_of("fp8_backend"), ""), "MSAMP");
  }
  if (!plugin.msamp_opt_level) {
    plugin.msamp_opt_level = environment.get(variable_of("fp8_opt_level")).value_or("O1");
  }
}

// ---- Fields and the entries of the configuration that stand for them.

template <typename T>
Json json_of(const T& value) {
  if constexpr (requires { value.index(); }) {
    return std::visit([](const auto& one) { return Json(one); }, value);
  } else {
    return value;
  }
}

template <typename T>
bool take(const Json& value, T& field) {
  return internal::zero::read(value, field);
}
template <typename Number>
bool take(const Json& value, std::variant<Number, std::string>& field) {
  Number number{};
  if (!take(value, number)) return false;
  field = number;
  return true;
}

// Calls `visit(key, field)` for each of them.
template <typename Visit>
void for_each_entry(Plugin& plugin, const Visit& visit) {
  visit("gradient_accumulation_steps", plugin.gradient_accumulation_steps);
  visit("gradient_clipping", plugin.gradient_clipping);
  visit("zero_optimization.stage", plugin.zero_stage);
  visit("zero_optimization.offload_optimizer.device", plugin.offload_optimizer_device);
  visit("zero_optimization.offload_param.device", plugin.offload_param_device);
  visit("zero_optimization.offload_param.nvme_path", plugin.offload_param_nvme_path);
  visit("zero_optimization.offload_optimizer.nvme_path", plugin.offload_optimizer_nvme_path);
  visit("zero_optimization.stage3_gather_16bit_weights_on_model_save",
        plugin.zero3_save_16bit_model);
}

// The launcher's configuration file must not say what the JSON says.
void check_conflicts(const Environment& environment) {
  constexpr const char* kIgnored[] = {
      "gradient_accumulation_steps", "gradient_clipping",      "zero_stage",
      "offload_optimizer_device",    "offload_param_device",   "offload_param_nvme_path",
      "offload_optimizer_nvme_path", "zero3_save_16bit_model", "mixed_precision"};
  std::vector<std::string> given;
  for (const auto field : absl::StrSplit(environment.get_or(kConfigFields, ""), ',')) {
    if (std::ranges::count(kIgnored, std::string(field)) > 0) given.emplace_back(field);
  }
  TORCH_CHECK_VALUE(
      given.empty(),
      "When using `deepspeed_config_file`, the following accelerate config variables "
      "will be ignored: ['",
      absl::StrJoin(kIgnored, "', '"),
      "'].\nPlease specify them "
      "appropriately in the DeepSpeed config file.\nThe accelerate config file has ",
      absl::StrJoin(given, ", "),
      "; remove them there.\nThe easiest method is to create a new "
      "config following the questionnaire via `accelerate config`.\nIt will only ask for the "
      "necessary config variables when using `deepspeed_config_file`.");
}

void take_configuration(Plugin& plugin, const Json& source, const Environment& environment,
                        FileSystem& files) {
  plugin.config = HfDeepSpeedConfig(source, &files);
  Json& config = plugin.deepspeed_config();
  if (!config.contains("gradient_accumulation_steps")) config["gradient_accumulation_steps"] = 1;
  TORCH_CHECK_VALUE(config.contains("zero_optimization"),
                    "Please specify the ZeRO optimization config in the DeepSpeed config.");
  const std::vector<std::string> problems = use_one_name(config);
  TORCH_CHECK_VALUE(problems.empty(), "hf_ds_config: ", absl::StrJoin(problems, "; "));
  check_conflicts(environment);
  DeepSpeedValues values;
  for_each_entry(plugin,
                 [&](const char* key, const auto& field) { values[key] = json_of(*field); });
  std::vector<std::string> mismatches;
  for (const auto& [key, value] : values) {
    plugin.fill_match(key, mismatches, values, /*must_match=*/false);
  }
  plugin.config.set_stage_and_offload();
  for_each_entry(plugin, [&](const char* key, auto& field) {
    const Json value = plugin.config.get_value(key);
    if (value.is_null() || value == kAuto) return;
    TORCH_CHECK_VALUE(take(value, *field), "the DeepSpeed configuration's \"", key, "\" is ",
                      json_text(value), ", which is of another type");
  });
}

void make_configuration(Plugin& plugin) {
  const auto block = [](const std::string& device, const std::string& path) {
    return Json{{"device", device}, {"nvme_path", device == "nvme" ? Json(path) : Json()}};
  };
  Json config = {
      {"train_batch_size", kAuto},
      {"train_micro_batch_size_per_gpu", kAuto},
      {"gradient_accumulation_steps", json_of(*plugin.gradient_accumulation_steps)},
      {"zero_optimization",
       {{"stage", *plugin.zero_stage},
        {"offload_optimizer",
         block(*plugin.offload_optimizer_device, *plugin.offload_optimizer_nvme_path)},
        {"offload_param", block(*plugin.offload_param_device, *plugin.offload_param_nvme_path)},
        {"stage3_gather_16bit_weights_on_model_save", *plugin.zero3_save_16bit_model}}},
  };
  const auto* clipping = std::get_if<double>(&*plugin.gradient_clipping);
  if (clipping == nullptr || *clipping != 0) {
    config["gradient_clipping"] = json_of(*plugin.gradient_clipping);
  }
  plugin.config = HfDeepSpeedConfig(config);
}

// ---- Checks.

void check_folder(const char* kind, const std::string& device, const std::string& path) {
  TORCH_CHECK_VALUE(device != "nvme" || (path != kNone && !path.empty()), "offload_", kind,
                    "_device is \"nvme\", but offload_", kind,
                    "_nvme_path does not say in which folder");
}

void check_fields(const Plugin& plugin) {
  TORCH_CHECK_VALUE(*plugin.zero_stage >= 0 && *plugin.zero_stage <= 3, "zero_stage is ",
                    *plugin.zero_stage, ", but there are 0, 1, 2 and 3 only");
  if (const auto* steps = std::get_if<int64_t>(&*plugin.gradient_accumulation_steps)) {
    TORCH_CHECK_VALUE(*steps >= 1, "gradient_accumulation_steps must be at least 1, got ", *steps);
  }
  if (const auto* clipping = std::get_if<double>(&*plugin.gradient_clipping)) {
    TORCH_CHECK_VALUE(*clipping >= 0 && *clipping <= std::numeric_limits<double>::max(),
                      "gradient_clipping is ", *clipping,
                      ", which is not the largest norm that "
                      "gradients may have");
  }
  check_choices(plugin, options::Section::kDeepSpeed);
  check_folder("optimizer", *plugin.offload_optimizer_device, *plugin.offload_optimizer_nvme_path);
  check_folder("param", *plugin.offload_param_device, *plugin.offload_param_nvme_path);
}

void resolve_zero3_init(Plugin& plugin) {
  const bool is_zero3 = plugin.config.is_zero3();
  if (!plugin.zero3_init_flag) plugin.zero3_init_flag = is_zero3;
  if (!*plugin.zero3_init_flag || is_zero3) return;
  TORCH_WARN("DeepSpeed Zero3 Init flag is only applicable for ZeRO Stage 3. Setting it to False.");
  plugin.zero3_init_flag = false;
}

void resolve_msamp(Plugin& plugin) {
  Json& config = plugin.deepspeed_config();
  if (!*plugin.enable_msamp || config.contains("msamp")) return;
  TORCH_CHECK_NOT_IMPLEMENTED(*plugin.zero_stage != 3,
                              "MS-AMP is not supported for ZeRO Stage 3. Please use ZeRO Stage 0, "
                              "1, or 2 instead.");
  const std::string& level = *plugin.msamp_opt_level;
  TORCH_CHECK_VALUE(level == "O1" || level == "O2",
                    "Invalid optimization level for MS-AMP: ", level,
                    ". Please use one of ['O1' or 'O2'].");
  config["msamp"] = {{"enabled", true}, {"opt_level", level}};
}

void check_resolved(const Plugin& plugin) {
  TORCH_CHECK_VALUE(plugin.is_resolved,
                    "this DeepSpeedPlugin is not resolved; call resolve(), or ask the "
                    "AcceleratorState for its own");
}

// ---- "auto" and mismatches.

// What filling the configuration in would come to.
struct Fill {
  std::vector<std::string> missing;
  std::vector<std::string> mismatches;
};

void fill_entry(Json& object, const std::string& key, const std::string& ds_key_long,
                const DeepSpeedValues& values, bool must_match, Fill& fill) {
  const auto entry = object.find(key);
  if (entry == object.end()) return;
  const auto value = values.find(ds_key_long);
  if (*entry == kAuto) {
    if (value == values.end()) {
      fill.missing.push_back(ds_key_long);
    } else {
      *entry = value->second;
    }
    return;
  }
  if (!must_match || entry->is_null() || value == values.end()) return;
  if (python_equal(*entry, value->second)) return;
  fill.mismatches.push_back(absl::StrCat("- ds ", ds_key_long, "=", python_text(*entry), " vs arg ",
                                         ds_key_long, "=", python_text(value->second)));
}

void fill_tree(Json& object, const std::string& prefix, const DeepSpeedValues& values,
               bool must_match, Fill& fill) {
  for (auto& [key, value] : object.items()) {
    const std::string ds_key_long = absl::StrCat(prefix, key);
    if (value.is_object()) {
      fill_tree(value, absl::StrCat(ds_key_long, "."), values, must_match, fill);
    } else {
      fill_entry(object, key, ds_key_long, values, must_match, fill);
    }
  }
}

std::string text_of_missing(const std::vector<std::string>& missing) {
  const std::string names = absl::StrCat("`", absl::StrJoin(missing, "`, `"), "`");
  return absl::StrCat(
      names, " not found in kwargs. Please specify ", names,
      " without `auto` (set to correct value) in the DeepSpeed config file or pass ",
      missing.size() == 1 ? "it" : "them", " in kwargs.");
}

}  // namespace

void DeepSpeedPlugin::fill_match(const std::string& ds_key_long,
                                 std::vector<std::string>& mismatches,
                                 const DeepSpeedValues& values, bool must_match) {
  const HfDeepSpeedConfig::Node node = config.find_config_node(ds_key_long);
  if (node.object == nullptr) return;
  Fill fill;
  fill_entry(*node.object, node.key, ds_key_long, values, must_match, fill);
  TORCH_CHECK_VALUE(fill.missing.empty(), text_of_missing(fill.missing));
  mismatches.insert(mismatches.end(), fill.mismatches.begin(), fill.mismatches.end());
}

void DeepSpeedPlugin::deepspeed_config_process(const DeepSpeedValues& values, bool must_match) {
  check_resolved(*this);
  Json filled = deepspeed_config();
  Fill fill;
  fill_tree(filled, "", values, must_match, fill);
  std::vector<std::string> problems;
  if (!fill.missing.empty()) problems.push_back(text_of_missing(fill.missing));
  if (!fill.mismatches.empty()) {
    problems.push_back(absl::StrCat(
        "Please correct the following DeepSpeed config values that mismatch kwargs  values:\n",
        absl::StrJoin(fill.mismatches, "\n"),
        "\nThe easiest method is to set these DeepSpeed config values to 'auto'."));
  }
  TORCH_CHECK_VALUE(problems.empty(), absl::StrJoin(problems, "\n"));
  deepspeed_config() = std::move(filled);
}

void DeepSpeedPlugin::set_mixed_precision(const std::string& mixed_precision) {
  check_resolved(*this);
  const auto precision = from_string<PrecisionType>(mixed_precision);
  const bool is_fp16 = precision == PrecisionType::kFp16;
  const bool is_bf16 = precision == PrecisionType::kBf16 || precision == PrecisionType::kFp8;
  const char* const other = is_fp16 ? "bf16" : "fp16";
  const Json other_enabled = config.get_value(absl::StrCat(other, ".enabled"), false);
  const bool is_other = other_enabled.is_string()
                            ? absl::EqualsIgnoreCase(other_enabled.get<std::string>(), "true")
                            : other_enabled == true;
  TORCH_CHECK_VALUE(precision == PrecisionType::kNo || !is_other,
                    "`--mixed_precision` arg cannot be set to `", mixed_precision, "` when `",
                    other, "` is set in the DeepSpeed config file.");
  Json& tree = deepspeed_config();
  if (is_fp16 && !tree.contains("fp16")) tree["fp16"] = {{"enabled", true}, {"auto_cast", true}};
  if (is_bf16 && !tree.contains("bf16")) tree["bf16"] = {{"enabled", true}};
  if (precision == PrecisionType::kFp8 && *enable_msamp && !tree.contains("msamp")) {
    tree["msamp"] = {{"enabled", true}, {"opt_level", *msamp_opt_level}};
  }
  std::vector<std::string> mismatches;
  const DeepSpeedValues values = {{"fp16.enabled", is_fp16}, {"bf16.enabled", is_bf16}};
  for (const auto& [name, enabled] :
       {std::pair("fp16", "fp16.enabled"), std::pair("bf16", "bf16.enabled")}) {
    if (!tree.contains(name)) tree[name] = {{"enabled", false}};
    fill_match(enabled, mismatches, values, /*must_match=*/false);
  }
}

void DeepSpeedPlugin::set_deepspeed_weakref() {
  check_resolved(*this);
  Json own = deepspeed_config();
  for (const char* key : {"gradient_accumulation_steps", "train_micro_batch_size_per_gpu"}) {
    if (!own.contains(key) || own[key] == kAuto) own[key] = 1;
  }
  if (own.contains("train_batch_size") && own["train_batch_size"] == kAuto) {
    own.erase("train_batch_size");
  }
  dschf = std::make_shared<const HfDeepSpeedConfig>(own);
}

Zero3InitScope DeepSpeedPlugin::zero3_init_context_manager(bool enable) {
  check_resolved(*this);
  return Zero3InitScope(*this, enable);
}

Zero3InitScope::Zero3InitScope(DeepSpeedPlugin& plugin, bool enable)
    : plugin_(plugin), before_(plugin.is_zero3_init_enabled()) {
  switch_to(enable);
}

Zero3InitScope::~Zero3InitScope() { switch_to(before_); }

void Zero3InitScope::switch_to(bool enable) {
  if (plugin_.is_zero3_init_enabled() == enable) return;
  plugin_.zero3_init_flag = enable;
  plugin_.set_deepspeed_weakref();
}

std::vector<std::string> DeepSpeedPlugin::set_moe_leaf_modules(const torch::nn::Module& model,
                                                               const Environment& environment) {
  fill_field(transformer_moe_cls_names, options::option("deepspeed_moe_layer_cls_names"),
             environment);
  if (!transformer_moe_cls_names) return {};
  std::vector<std::string> names = absl::StrSplit(*transformer_moe_cls_names, ',');
  for (const std::string& name : names) {
    TORCH_CHECK_VALUE(get_module_class_from_name(model, name) != nullptr,
                      "Could not find a transformer layer class called '", name,
                      "' to wrap in the model.");
  }
  return names;
}

void DeepSpeedPlugin::select(bool from_accelerator_state) {
  TORCH_CHECK_VALUE(from_accelerator_state,
                    "a DeepSpeedPlugin is selected by its name, because another one is to be "
                    "unselected: call AcceleratorState::select_deepspeed_plugin");
  is_selected = true;
}

DeepSpeedPlugin resolve(DeepSpeedPlugin plugin, const Environment& environment, FileSystem& files) {
  if (plugin.is_resolved) return plugin;
  take_fields(plugin, environment);
  Json source = plugin.hf_ds_config;
  if (source.is_null()) source = environment.get_or(variable_of("deepspeed_config_file"), kNone);
  plugin.is_resolved = true;  // its member functions complete it
  if (source == kNone) {
    check_fields(plugin);
    make_configuration(plugin);
  } else {
    take_configuration(plugin, source, environment, files);
    check_fields(plugin);
  }
  // Nothing is printed here.
  plugin.deepspeed_config()["steps_per_print"] = std::numeric_limits<double>::infinity();
  resolve_zero3_init(plugin);
  resolve_msamp(plugin);
  return plugin;
}

std::string to_text(const DeepSpeedPlugin& plugin) {
  return absl::StrCat("config=", json_text(plugin.deepspeed_config()),
                      ", is_train_batch_min=", plugin.is_train_batch_min ? "True" : "False",
                      ", zero3_init_flag=", plugin.is_zero3_init_enabled() ? "True" : "False",
                      plugin.transformer_moe_cls_names ? ", transformer_moe_cls_names=" : "",
                      plugin.transformer_moe_cls_names.value_or(""));
}

}  // namespace accelerate
