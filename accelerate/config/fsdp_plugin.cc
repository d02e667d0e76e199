#include "accelerate/config/fsdp_plugin.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>
#include <type_traits>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "absl/functional/overload.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/config/model_structure.h"
#include "accelerate/config/option_fields.h"
#include "accelerate/runtime/env_parsing.h"
#include "accelerate/values/dtypes.h"
#include "accelerate/values/fields.h"
#include "accelerate/values/module_class.h"
#include "accelerate/values/texts.h"

namespace accelerate {
namespace {

using Plugin = FullyShardedDataParallelPlugin;
using DtypeMap = std::map<std::string, c10::ScalarType>;

const options::Option& row(const char* field) {
  return *options::find_field(options::Section::kFsdp, field);
}

// The precisions by name, in HF Accelerate's order.
constexpr std::pair<const char*, c10::ScalarType> kPrecisions[] = {
    {"fp8", c10::kBFloat16},
    {"fp16", c10::kHalf},
    {"bf16", c10::kBFloat16},
    {"fp32", c10::kFloat},
};
constexpr char kPrecisionNames[] = "['fp8', 'fp16', 'bf16', 'fp32']";
constexpr char kMixedDtypes[] = "[torch.bfloat16, torch.float16, torch.bfloat16, torch.float32]";

bool is_precision(c10::ScalarType dtype) {
  return std::ranges::any_of(kPrecisions, [&](const auto& each) { return each.second == dtype; });
}

// As Python writes it.
std::string text_of(c10::ScalarType dtype) {
  if (dtype == c10::ScalarType::Undefined) return "torch.undefined";
  return absl::StrCat("torch.", dtype_name(dtype));
}
const char* text_of(bool value) { return value ? "True" : "False"; }

bool is_number(const std::string& text) {
  return !text.empty() && std::ranges::all_of(text, absl::ascii_isdigit);
}

template <typename E>
E member(int64_t number) {
  TORCH_CHECK_VALUE(number >= 1 && number <= static_cast<int64_t>(values<E>().size()), number,
                    " is not a valid ", EnumTable<E>::kName);
  return static_cast<E>(number - 1);
}

// PyTorch's own spelling of a name is the name as well.
template <typename E>
std::string known_name(const std::string& text) {
  const bool is_torchs =
      std::is_same_v<E, ShardingStrategy> && absl::EqualsIgnoreCase(text, "_HYBRID_SHARD_ZERO2");
  return is_torchs ? text.substr(1) : text;
}

template <typename E>
E member(const std::string& text) {
  const std::string name = known_name<E>(text);
  if (is_number(text)) {
    int64_t number = 0;
    return member<E>(absl::SimpleAtoi(text, &number) ? number : 0);
  }
  TORCH_CHECK_VALUE(contains<E>(name), "'", absl::AsciiStrToUpper(text), "' is not a valid ",
                    EnumTable<E>::kName, ": it is one of ",
                    absl::StrJoin(EnumTable<E>::kTexts, ", "));
  return from_string<E>(name);
}

template <typename E>
E member(E value) {
  return value;
}

// The member that one of the alternatives stands for.
template <typename E, typename Choice>
E chosen(const Choice& choice) {
  return std::visit([](const auto& value) { return member<E>(value); }, choice);
}

bool reshards(ShardingStrategy strategy) {
  return strategy == ShardingStrategy::kFullShard || strategy == ShardingStrategy::kHybridShard;
}

// ---- The fields one by one, in HF Accelerate's order.

void resolve_strategy_1(Plugin& plugin, const Environment& environment) {
  auto& given = plugin.reshard_after_forward;
  TORCH_CHECK_VALUE(!given || !std::holds_alternative<bool>(*given),
                    "reshard_after_forward set to ", text_of(std::get<bool>(*given)),
                    ". This is not supported with FSDP1, please set to a `str` or an instance of "
                    "`torch.distributed.fsdp.fully_sharded_data_parallel.ShardingStrategy`");
  std::optional<ShardingStrategy> reshard;
  if (given) {
    reshard = std::visit(
        absl::Overload{[](bool) { return ShardingStrategy(); },
                       [](const auto& value) { return member<ShardingStrategy>(value); }},
        *given);
    given = *reshard;
  }
  if (!plugin.sharding_strategy && reshard) plugin.sharding_strategy = *reshard;
  fill_field(plugin.sharding_strategy, row("sharding_strategy"), environment);
  if (!plugin.sharding_strategy) {
    // Here a launcher for version 2 writes a truth value, which says nothing to version 1.
    const std::string text = environment.get_or(row("reshard_after_forward").variable_name(), "");
    if (is_number(text) || contains<ShardingStrategy>(known_name<ShardingStrategy>(text))) {
      plugin.sharding_strategy = text;
    }
  }
  plugin.sharding_strategy = plugin.sharding_strategy
                                 ? chosen<ShardingStrategy>(*plugin.sharding_strategy)
                                 : ShardingStrategy::kFullShard;
}

// A truth value, or a number of ranks above 1.
std::variant<bool, ShardingStrategy, int64_t, std::string> reshard_of(const std::string& text) {
  int64_t number = 0;
  if (is_number(text) && absl::SimpleAtoi(text, &number) && number > 1) return number;
  return str_to_bool(text);
}

void resolve_strategy_2(Plugin& plugin, const Environment& environment,
                        std::vector<std::string>& warnings) {
  auto& reshard = plugin.reshard_after_forward;
  if (plugin.sharding_strategy) {
    const bool by_strategy = reshards(chosen<ShardingStrategy>(*plugin.sharding_strategy));
    if (!reshard) reshard = by_strategy;
  }
  if (!reshard) {
    const std::string variable = row("reshard_after_forward").variable_name();
    const std::string text = environment.get_or(variable, "");
    reshard = is_number(text) ? reshard_of(text) : parse_flag_from_env(variable, true, environment);
  }
  if (const auto* text = std::get_if<std::string>(&*reshard)) reshard = reshard_of(*text);
  if (const auto* number = std::get_if<int64_t>(&*reshard)) {
    TORCH_CHECK_VALUE(*number > 0, "reshard_after_forward=", *number,
                      ": parameters are divided among at least one rank after the forward pass");
    if (*number > 1) return;
    warnings.emplace_back(
        "reshard_after_forward=1 (int) means resharding parameters to world size 1, instead of "
        "reshard_after_forward=True (bool)");
    reshard = false;
  }
  const auto* strategy = std::get_if<ShardingStrategy>(&*reshard);
  TORCH_CHECK_VALUE(strategy == nullptr, "reshard_after_forward set to ShardingStrategy.",
                    to_string(*strategy),
                    ". This is not supported with FSDP2, please set to a `bool`");
}

void resolve_backward_prefetch(Plugin& plugin, std::vector<std::string>& warnings) {
  auto& prefetch = plugin.backward_prefetch;
  const auto* text = prefetch ? std::get_if<std::string>(&*prefetch) : nullptr;
  if (text != nullptr && absl::EqualsIgnoreCase(*text, "NO_PREFETCH")) prefetch.reset();
  if (!prefetch) return;
  prefetch = chosen<BackwardPrefetch>(*prefetch);
  if (plugin.version() == 1) return;
  warnings.emplace_back(
      "backward_prefetch is not supported in FSDP2. Setting backward prefetch to None.");
  prefetch.reset();
}

void resolve_wrap_policy(Plugin& plugin, const Environment& environment) {
  auto& policy = plugin.auto_wrap_policy;
  if (!policy) return;
  if (const auto* text = std::get_if<std::string>(&*policy)) {
    TORCH_CHECK_VALUE(contains<AutoWrapPolicy>(*text), "Invalid auto wrap policy: ", *text,
                      ". Must be one of ['",
                      absl::StrJoin(EnumTable<AutoWrapPolicy>::kTexts, "', '"), "']");
    policy = from_string<AutoWrapPolicy>(*text);
  }
  const auto* kind = std::get_if<AutoWrapPolicy>(&*policy);
  if (kind == nullptr) {
    TORCH_CHECK_VALUE(std::get<ModulePolicy>(*policy) != nullptr,
                      "auto_wrap_policy: the function is empty");
    return;
  }
  switch (*kind) {
    case AutoWrapPolicy::kTransformerBasedWrap:
      fill_field(plugin.transformer_cls_names_to_wrap, row("transformer_cls_names_to_wrap"),
                 environment);
      break;
    case AutoWrapPolicy::kSizeBasedWrap:
      fill_field(plugin.min_num_params, row("min_num_params"), environment);
      TORCH_CHECK_VALUE(*plugin.min_num_params >= 0, "min_num_params is ", *plugin.min_num_params,
                        ", less than 0");
      break;
    case AutoWrapPolicy::kNoWrap: policy.reset(); break;
  }
}

void set_efficient_loading(bool is_efficient, Environment& environment) {
  environment.set(row("cpu_ram_efficient_loading").variable_name(), text_of(is_efficient));
}

// Version 2 does without these.
void drop(std::optional<bool>& field, const char* warning, std::vector<std::string>& warnings) {
  if (!field) return;
  warnings.emplace_back(warning);
  field.reset();
}

void resolve_flags(Plugin& plugin, std::vector<std::string>& warnings) {
  if (plugin.version() == 2) {
    drop(plugin.use_orig_params,
         "use_orig_params is obsolete in FSDP2, as FSDP2 always uses the original parameters.",
         warnings);
    drop(plugin.sync_module_states,
         "sync_module_states is obsolete in FSDP2, as it is not needed anymore."
         "Setting sync_module_states to None.",
         warnings);
    TORCH_CHECK_VALUE(!plugin.forward_prefetch.value_or(false),
                      "forward_prefetch is not yet implemented in FSDP2, set to None or use "
                      "`fsdp_version=1`");
    plugin.forward_prefetch.reset();
  }
  if (!*plugin.activation_checkpointing_offload) return;
  TORCH_CHECK_VALUE(*plugin.activation_checkpointing,
                    "`activation_checkpointing_offload=True` requires "
                    "`activation_checkpointing=True`.");
  TORCH_CHECK_VALUE(plugin.version() == 2,
                    "`activation_checkpointing_offload=True` requires `fsdp_version=2`.");
}

// Gradients have param_dtype already.
MixedPrecisionPolicy normalised(MixedPrecisionPolicy policy) {
  if (policy.reduce_dtype == policy.param_dtype) policy.reduce_dtype.reset();
  return policy;
}

// The version's struct; `other` is the dtype of buffers in version 1, of outputs in 2.
void set_policy(Plugin& plugin, c10::ScalarType param, c10::ScalarType reduce,
                c10::ScalarType other) {
  if (plugin.version() == 1) {
    plugin.mixed_precision_policy =
        MixedPrecision{.param_dtype = param, .reduce_dtype = reduce, .buffer_dtype = other};
  } else {
    plugin.mixed_precision_policy =
        normalised({.param_dtype = param, .reduce_dtype = reduce, .output_dtype = other});
  }
}

// The version's struct from its dtypes by name.
void take_map(Plugin& plugin, const DtypeMap& dtypes) {
  const bool is_first = plugin.version() == 1;
  const std::array<std::string, 3> keys = {"param_dtype", "reduce_dtype",
                                           is_first ? "buffer_dtype" : "output_dtype"};
  const bool fits =
      std::ranges::all_of(keys, [&](const auto& key) { return dtypes.contains(key); }) &&
      std::ranges::all_of(dtypes, [](const auto& item) { return is_precision(item.second); });
  const auto item_text = [](std::string* out, const auto& item) {
    absl::StrAppend(out, "'", item.first, "': ", text_of(item.second));
  };
  TORCH_CHECK_VALUE(fits, "Invalid mixed precision policy: {",
                    absl::StrJoin(dtypes, ", ", item_text), "}. Must be a `dict` with keys ['",
                    absl::StrJoin(keys, "', '"), "'].Values must be one of ", kMixedDtypes);
  for (const auto& [name, dtype] : dtypes) {
    TORCH_CHECK_VALUE(std::ranges::count(keys, name) > 0, "mixed_precision_policy has a key \"",
                      name, "\", which FSDP", plugin.version(), " does not have");
  }
  set_policy(plugin, dtypes.at(keys[0]), dtypes.at(keys[1]), dtypes.at(keys[2]));
}

void resolve_precision(Plugin& plugin) {
  if (!plugin.mixed_precision_policy) return;
  // Copies, because they take the field's place.
  if (const auto* text = std::get_if<std::string>(&*plugin.mixed_precision_policy)) {
    plugin.set_mixed_precision(std::string(*text), /*buffer_autocast=*/false, /*override=*/true);
  } else if (const auto* map = std::get_if<DtypeMap>(&*plugin.mixed_precision_policy)) {
    take_map(plugin, DtypeMap(*map));
  }
  plugin.validate_mixed_precision_policy();
  if (auto* policy = std::get_if<MixedPrecisionPolicy>(&*plugin.mixed_precision_policy)) {
    *policy = normalised(*policy);
  }
}

template <typename T>
constexpr bool kIsVariant = false;
template <typename... Alternatives>
constexpr bool kIsVariant<std::variant<Alternatives...>> = true;

template <typename T>
std::string class_text(const T& value);

// As Python writes it; empty for what is absent.
template <typename T>
std::string value_text(const T& value) {
  if constexpr (internal::kIsOptionalField<T>) {
    return value ? value_text(*value) : "";
  } else if constexpr (kIsVariant<T>) {
    return std::visit([](const auto& one) { return value_text(one); }, value);
  } else if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, c10::ScalarType>) {
    return text_of(value);
  } else if constexpr (EnumWithText<T>) {
    return to_string(value);
  } else if constexpr (HasFields<T>) {
    return class_text(value);
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    return absl::StrCat("[", absl::StrJoin(value, ", "), "]");
  } else if constexpr (std::is_constructible_v<absl::AlphaNum, const T&>) {
    return absl::StrCat(value);
  } else if constexpr (std::is_constructible_v<bool, const T&>) {
    return value ? "a function" : "";
  } else {
    return absl::StrCat(value.size(), " entries");
  }
}

template <typename T>
std::string class_text(const T& value) {
  std::vector<std::string> fields;
  visit_fields(value, [&](const char* name, const auto& field) {
    const std::string text = value_text(field);
    fields.push_back(absl::StrCat(name, "=", text.empty() ? "None" : text));
  });
  return absl::StrCat(name_of_class(value), "(", absl::StrJoin(fields, ", "), ")");
}

}  // namespace

int FullyShardedDataParallelPlugin::version() const {
  TORCH_CHECK_VALUE(is_resolved,
                    "this FullyShardedDataParallelPlugin is not resolved; call "
                    "resolve(), or ask the AcceleratorState for its own");
  return static_cast<int>(*fsdp_version);
}

ShardingStrategy FullyShardedDataParallelPlugin::strategy() const {
  if (version() == 1) return std::get<ShardingStrategy>(*sharding_strategy);
  const auto* reshards = std::get_if<bool>(&*reshard_after_forward);
  return reshards == nullptr || *reshards ? ShardingStrategy::kFullShard
                                          : ShardingStrategy::kShardGradOp;
}

std::optional<int64_t> FullyShardedDataParallelPlugin::ranks_after_forward() const {
  if (version() == 1) return std::nullopt;
  const auto* ranks = std::get_if<int64_t>(&*reshard_after_forward);
  return ranks == nullptr ? std::nullopt : std::make_optional(*ranks);
}

bool FullyShardedDataParallelPlugin::reshards_after_forward() const { return reshards(strategy()); }

bool FullyShardedDataParallelPlugin::offloads_parameters() const {
  version();
  const auto* first = std::get_if<CPUOffload>(&*cpu_offload);
  return std::holds_alternative<CPUOffloadPolicy>(*cpu_offload) ||
         (first != nullptr && first->offload_params);
}

bool FullyShardedDataParallelPlugin::pins_memory() const {
  if (!offloads_parameters()) return false;
  const auto* policy = std::get_if<CPUOffloadPolicy>(&*cpu_offload);
  return policy == nullptr || policy->pin_memory;
}

ShardPrecision FullyShardedDataParallelPlugin::precision() const {
  version();
  if (!mixed_precision_policy) return {};
  if (const auto* first = std::get_if<MixedPrecision>(&*mixed_precision_policy)) {
    return {.param_dtype = first->param_dtype,
            .reduce_dtype = first->reduce_dtype,
            .buffer_dtype = first->buffer_dtype,
            .cast_inputs = first->cast_forward_inputs || first->cast_root_forward_inputs,
            .keep_low_precision_grads = first->keep_low_precision_grads};
  }
  const auto& second = std::get<MixedPrecisionPolicy>(*mixed_precision_policy);
  return {.param_dtype = second.param_dtype,
          .reduce_dtype = second.reduce_dtype,
          .output_dtype = second.output_dtype,
          .cast_inputs = second.cast_forward_inputs};
}

StateDictType FullyShardedDataParallelPlugin::state_type() const {
  version();
  return std::get<StateDictType>(*state_dict_type);
}

void FullyShardedDataParallelPlugin::set_state_dict_type(
    std::optional<EnumChoice<StateDictType>> type) {
  const StateDictType usual =
      version() == 1 ? StateDictType::kFullStateDict : StateDictType::kShardedStateDict;
  if (!type) type = state_dict_type;
  const StateDictType chosen_type = type ? chosen<StateDictType>(*type) : usual;
  TORCH_CHECK_VALUE(version() == 1 || chosen_type != StateDictType::kLocalStateDict,
                    "FSDP2 does not support LOCAL_STATE_DICT. Please set `fsdp_state_dict_type` to "
                    "`SHARDED_STATE_DICT` or `FULL_STATE_DICT`.");
  state_dict_type = chosen_type;
  if (chosen_type == StateDictType::kFullStateDict) {
    if (!state_dict_config) {
      state_dict_config = FullStateDictConfig{.offload_to_cpu = true, .rank0_only = true};
    }
    if (!optim_state_dict_config) {
      optim_state_dict_config =
          FullOptimStateDictConfig{.offload_to_cpu = true, .rank0_only = true};
    }
  } else if (chosen_type == StateDictType::kShardedStateDict) {
    if (!state_dict_config) state_dict_config = ShardedStateDictConfig{.offload_to_cpu = true};
    if (!optim_state_dict_config) {
      optim_state_dict_config = ShardedOptimStateDictConfig{.offload_to_cpu = true};
    }
  }
}

void FullyShardedDataParallelPlugin::set_auto_wrap_policy(const torch::nn::Module& model) {
  version();
  const auto* kind = auto_wrap_policy ? std::get_if<AutoWrapPolicy>(&*auto_wrap_policy) : nullptr;
  if (kind == nullptr) return;
  if (*kind == AutoWrapPolicy::kSizeBasedWrap) {
    if (*min_num_params == 0) auto_wrap_policy.reset();
    return;
  }
  if (!transformer_cls_names_to_wrap) {
    const auto* structure = dynamic_cast<const ModelStructure*>(&model);
    transformer_cls_names_to_wrap =
        structure != nullptr ? structure->no_split_modules() : std::vector<std::string>();
  }
  for (const std::string& name : *transformer_cls_names_to_wrap) {
    TORCH_CHECK_VALUE(get_module_class_from_name(model, name) != nullptr,
                      "Could not find the transformer layer class ", name, " in the model.");
  }
}

void FullyShardedDataParallelPlugin::set_mixed_precision(const std::string& mixed_precision,
                                                         bool buffer_autocast, bool override) {
  const auto* const known = std::ranges::find_if(
      kPrecisions, [&](const auto& each) { return each.first == mixed_precision; });
  TORCH_CHECK_VALUE(known != std::end(kPrecisions), "Invalid mixed precision: ", mixed_precision,
                    ". Must be one of ", kPrecisionNames);
  set_mixed_precision(known->second, buffer_autocast, override);
}

void FullyShardedDataParallelPlugin::set_mixed_precision(c10::ScalarType dtype,
                                                         bool buffer_autocast, bool override) {
  TORCH_CHECK_VALUE(is_precision(dtype), "Invalid mixed precision: ", text_of(dtype),
                    ". Must be one of ", kMixedDtypes);
  if (mixed_precision_policy && !override) return;
  const bool keeps_buffers = version() == 1 && buffer_autocast;
  set_policy(*this, dtype, dtype, keeps_buffers ? c10::kFloat : dtype);
}

void FullyShardedDataParallelPlugin::validate_mixed_precision_policy() const {
  const bool is_first = version() == 1;
  const bool fits =
      mixed_precision_policy &&
      (is_first ? std::holds_alternative<MixedPrecision>(*mixed_precision_policy)
                : std::holds_alternative<MixedPrecisionPolicy>(*mixed_precision_policy));
  TORCH_CHECK_VALUE(fits, "mixed_precision_policy must be an instance of `torch.distributed.fsdp.",
                    is_first ? "MixedPrecision" : "MixedPrecisionPolicy", "`.");
}

void FullyShardedDataParallelPlugin::set_cpu_offload() {
  const bool is_first = version() == 1;
  const auto* given = cpu_offload ? std::get_if<bool>(&*cpu_offload) : nullptr;
  if (given == nullptr) return;
  const bool offloads = *given;
  if (is_first) {
    cpu_offload = CPUOffload{.offload_params = offloads};
  } else if (offloads) {
    cpu_offload = CPUOffloadPolicy();
  } else {
    cpu_offload = OffloadPolicy();
  }
}

void FullyShardedDataParallelPlugin::validate_cpu_offload() const {
  const bool is_first = version() == 1;
  const bool fits =
      cpu_offload && (is_first ? std::holds_alternative<CPUOffload>(*cpu_offload)
                               : std::holds_alternative<OffloadPolicy>(*cpu_offload) ||
                                     std::holds_alternative<CPUOffloadPolicy>(*cpu_offload));
  TORCH_CHECK_VALUE(fits, "`cpu_offload` must be an instance of `torch.distributed.fsdp.",
                    is_first ? "CPUOffload` in FSDP1, got " : "OffloadPolicy` in FSDP2, got ",
                    cpu_offload ? value_text(cpu_offload) : "None");
}

FullyShardedDataParallelPlugin resolve(FullyShardedDataParallelPlugin plugin,
                                       Environment& environment) {
  if (plugin.is_resolved) return plugin;
  fill_field(plugin.fsdp_version, row("fsdp_version"), environment);
  TORCH_CHECK_VALUE(plugin.fsdp_version == 1 || plugin.fsdp_version == 2, "fsdp_version is ",
                    *plugin.fsdp_version, ", but there are 1 and 2 only");
  plugin.is_resolved = true;  // its member functions complete it
  std::vector<std::string> warnings;
  if (plugin.sharding_strategy) {
    warnings.emplace_back(
        "sharding_strategy is deprecated in favor of reshard_after_forward. This will be removed "
        "in a future version of Accelerate.");
  }
  if (plugin.version() == 1) {
    resolve_strategy_1(plugin, environment);
  } else {
    resolve_strategy_2(plugin, environment, warnings);
  }
  const std::optional<bool> given_loading = plugin.cpu_ram_efficient_loading;
  // What neither the strategies nor a wrap policy reads; version 2 does without three fields.
  std::vector<std::string_view> apart = {"sharding_strategy", "reshard_after_forward",
                                         "transformer_cls_names_to_wrap", "min_num_params"};
  if (plugin.version() == 2) {
    apart.insert(apart.end(), {"use_orig_params", "sync_module_states", "forward_prefetch"});
  }
  fill_fields(plugin, options::Section::kFsdp, environment, apart);
  plugin.set_cpu_offload();
  plugin.validate_cpu_offload();
  resolve_backward_prefetch(plugin, warnings);
  plugin.set_state_dict_type();
  resolve_wrap_policy(plugin, environment);
  resolve_flags(plugin, warnings);
  if (given_loading) set_efficient_loading(*given_loading, environment);
  if (plugin.version() == 1 && *plugin.cpu_ram_efficient_loading && !*plugin.sync_module_states) {
    TORCH_WARN(
        "sync_module_states cannot be False since efficient cpu ram loading enabled. Setting "
        "sync_module_states to True.");
    plugin.sync_module_states = true;
  }
  resolve_precision(plugin);
  if (!warnings.empty()) {
    TORCH_WARN("Multiple deprecation warnings due to FSDP2 conversion:\n",
               absl::StrJoin(warnings, "\n"));
  }
  return plugin;
}

std::string to_text(const FullyShardedDataParallelPlugin& plugin) {
  std::string text;
  visit_fields(plugin, [&](const char* name, const auto& field) {
    const std::string value = value_text(field);
    if (!value.empty()) {
      absl::StrAppend(&text, text.empty() ? "" : ", ", name, "=", value);
    }
  });
  return text;
}

const torch::nn::Module* get_module_class_from_name(const torch::nn::Module& module,
                                                    const std::string& name) {
  if (module_class_name(module) == name) return &module;
  for (const auto& child : module.children()) {
    const torch::nn::Module* found = get_module_class_from_name(*child, name);
    // The model owns its children.
    if (found != nullptr) return found;
  }
  return nullptr;
}

void enable_fsdp_ram_efficient_loading(Environment& environment) {
  if (!environment.get(kUseFsdp)) environment.set(kUseFsdp, "True");
  set_efficient_loading(true, environment);
}

void disable_fsdp_ram_efficient_loading(Environment& environment) {
  set_efficient_loading(false, environment);
}

std::optional<StateDictOptions> state_dict_options(const FullyShardedDataParallelPlugin& plugin) {
  if (plugin.version() == 1) return std::nullopt;
  StateDictOptions options;
  options.full_state_dict = plugin.state_type() == StateDictType::kFullStateDict;
  if (!plugin.state_dict_config) return options;
  options.cpu_offload = std::visit([](const auto& config) { return config.offload_to_cpu; },
                                   *plugin.state_dict_config);
  if (const auto* full = std::get_if<FullStateDictConfig>(&*plugin.state_dict_config)) {
    options.broadcast_from_rank0 = full->rank0_only;
  }
  return options;
}

}  // namespace accelerate
