#include "accelerate/accelerator_options.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <c10/util/Exception.h>

#include "absl/strings/str_join.h"
#include "accelerate/base/rank_layout.h"
#include "accelerate/compile/backends.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/config/megatron_lm_plugin.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/config/pipeline_plan.h"
#include "accelerate/config/zero_config.h"
#include "accelerate/parallel/apply.h"
#include "accelerate/report/availability.h"
#include "accelerate/runtime/env_parsing.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/state/accelerator_state.h"
#include "accelerate/techniques/technique_list.h"

namespace accelerate {
namespace {

constexpr char kUseCpu[] = "ACCELERATE_USE_CPU";
constexpr char kUseParallelismConfig[] = "ACCELERATE_USE_PARALLELISM_CONFIG";
constexpr char kUseMegatron[] = "ACCELERATE_USE_MEGATRON_LM";
constexpr char kAccumulationSteps[] = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS";

bool has_pipeline_plan(const AcceleratorOptions& options) {
  return std::ranges::any_of(options.kwargs_handlers, [](const KwargsHandler& each) {
    return std::holds_alternative<PipelinePlan>(each);
  });
}

// Each says how ranks divide models.
void check_one_engine(const AcceleratorOptions& options, const Environment& environment) {
  const bool is_fsdp = options.fsdp_plugin || parse_flag_from_env(kUseFsdp, false, environment);
  const bool is_zero = options.deepspeed_plugin || !options.deepspeed_plugins.empty() ||
                       parse_flag_from_env(kUseDeepSpeed, false, environment);
  const auto illegal = find_illegal({.fsdp = is_fsdp, .zero = is_zero});
  TORCH_CHECK_VALUE(!illegal, illegal->why);
  if (!options.megatron_lm_plugin && !parse_flag_from_env(kUseMegatron, false, environment)) return;
  const bool has_mesh = options.parallelism_config || options.torch_tp_plugin ||
                        parse_flag_from_env(kUseParallelismConfig, false, environment);
  const DataLoaderConfiguration& loading = options.dataloader_config;
  const std::pair<const char*, bool> others[] = {
      {"an fsdp_plugin (ACCELERATE_USE_FSDP)", is_fsdp},
      {"a deepspeed_plugin (ACCELERATE_USE_DEEPSPEED)", is_zero},
      {"a parallelism_config (ACCELERATE_USE_PARALLELISM_CONFIG)", has_mesh},
      {"a PipelinePlan", has_pipeline_plan(options)},
      {"split_batches", options.split_batches.value_or(loading.split_batches)}};
  for (const auto& [name, is_there] : others) {
    TORCH_CHECK_VALUE(!is_there, "megatron_lm_plugin (", kUseMegatron,
                      "): its degrees and micro-batches say how ranks divide models and batches, "
                      "but there is ",
                      name, " as well; leave one of them out");
  }
}

void check_precision(PrecisionType precision, const Runtime& runtime) {
  const bool available = precision == PrecisionType::kNo ||
                         (precision == PrecisionType::kFp16 ? is_fp16_available(runtime)
                                                            : is_bf16_available(false, runtime));
  TORCH_CHECK_VALUE(
      precision != PrecisionType::kFp16 || !is_torch_xla_available(true, false, runtime),
      "mixed precision \"fp16\": TPUs compute in bf16; use mixed_precision=\"bf16\"");
  TORCH_CHECK_VALUE(available, "mixed precision \"", to_string(precision),
                    "\": this rank's device does not compute in it");
}

PrecisionType chosen_precision(const AcceleratorOptions& options, const Runtime& runtime) {
  if (options.mixed_precision) return *options.mixed_precision;
  // Read first, so that a mistake in it is an error even if an earlier Accelerator overrides it.
  const auto from_environment = mixed_precision_from_env(runtime.environment());
  if (const auto* earlier = AcceleratorState::find(runtime)) return earlier->mixed_precision();
  return from_environment.value_or(PrecisionType::kNo);
}

// Says once, on rank 0, what a configuration asks for and does not get.
void warn_in_vain(const ParallelismConfig& config, const Runtime& runtime) {
  if (runtime.topology().rank != 0 || !config.sp_enabled()) return;
  const std::string kernel = config.sp_handler()->sp_attn_implementation.value_or("sdpa");
  if (kernel == "sdpa") return;
  TORCH_WARN("parallelism_config: sp_attn_implementation=", kernel,
             " has no effect: ranks along sp attend by LibTorch's scaled_dot_product_attention, "
             "which chooses its kernel by itself");
}

// A configuration that is new here is one that the job can follow.
std::optional<ParallelismConfig> chosen_parallelism(const AcceleratorOptions& options,
                                                    const Runtime& runtime) {
  const Environment& environment = runtime.environment();
  const std::optional<TorchTensorParallelPlugin>& plugin = options.torch_tp_plugin;
  const auto checked = [&options, &runtime](ParallelismConfig config) {
    RankLayout layout = config.layout();
    layout.zero = !options.deepspeed_plugins.empty();
    check_layout(layout);
    warn_in_vain(config, runtime);
    return config;
  };
  if (plugin) {
    TORCH_WARN(
        "`TorchTensorParallelPlugin` is deprecated and will be removed in a future version of "
        "Accelerate. Please use the `ParallelismConfig` with `tp_size` instead.");
  }
  if (options.parallelism_config) {
    TORCH_CHECK_VALUE(!plugin || plugin->tp_size == options.parallelism_config->tp_size(),
                      "torch_tp_plugin's tp_size=", plugin->tp_size,
                      " contradicts parallelism_config's tp_size=",
                      options.parallelism_config->tp_size(), "; leave the plugin out");
    return checked(*options.parallelism_config);
  }
  if (plugin) return checked(ParallelismConfig({.tp_size = plugin->tp_size}, environment));
  // Read first, so that a mistake in it is an error even if an earlier Accelerator overrides it.
  std::optional<ParallelismConfig> from_environment;
  if (parse_flag_from_env(kUseParallelismConfig, false, environment)) {
    from_environment = checked(ParallelismConfig({}, environment));
  }
  if (const auto* earlier = AcceleratorState::find(runtime)) return earlier->parallelism_config();
  return from_environment;
}

// Says once, on rank 0, what a resolved plugin asks for and does not get.
void warn_in_vain(const FullyShardedDataParallelPlugin& plugin, const Runtime& runtime) {
  if (runtime.topology().rank != 0) return;
  if (!plugin.limit_all_gathers) {
    TORCH_WARN(
        "fsdp_plugin: limit_all_gathers=false has no effect: two groups are in memory or on their "
        "way at most");
  }
  const auto is_usual = [](const auto& config) {
    if constexpr (requires { config.rank0_only; }) {
      if (!config.rank0_only) return false;
    }
    return config.offload_to_cpu;
  };
  if (plugin.optim_state_dict_config && !std::visit(is_usual, *plugin.optim_state_dict_config)) {
    TORCH_WARN(
        "fsdp_plugin: optim_state_dict_config has no effect: an optimizer's state is on rank 0's "
        "host, or on the hosts of its ranks, until it is written");
  }
}
void warn_in_vain(const DeepSpeedPlugin& plugin, const Runtime& runtime) {
  if (runtime.topology().rank != 0) return;
  if (plugin.config.is_zero3() && !plugin.is_zero3_init_enabled()) {
    TORCH_WARN(
        "deepspeed_plugin: zero3_init_flag=false has no effect: a model that is built in "
        "init_empty_weights() is divided as it gets its values, and another one is whole until "
        "prepare()");
  }
  const std::vector<std::string> ignored = ignored_keys(plugin.deepspeed_config());
  if (!ignored.empty()) {
    TORCH_WARN("deepspeed_plugin: its configuration has ", absl::StrJoin(ignored, ", "),
               ", which DeepSpeed does not know and ignores; this library ignores it as well");
  }
}

// Whether an Accelerator is the first that asks the variables for a plugin: an earlier one has read
// them, and what the program has changed in its plugin since stays.
template <typename Plugin>
bool asks_variables(const char* variable, Plugin* (AcceleratorState::*plugin)() const,
                    const Runtime& runtime) {
  if (!parse_flag_from_env(variable, false, runtime.environment())) return false;
  const AcceleratorState* const earlier = AcceleratorState::find(runtime);
  return earlier == nullptr || (earlier->*plugin)() == nullptr;
}

// The plugin of the options, or of the variables, resolved; absent where an earlier Accelerator's
// stays, or for none.
template <typename Plugin>
std::optional<Plugin> chosen_plugin(const std::optional<Plugin>& given, const char* variable,
                                    Plugin* (AcceleratorState::*earlier)() const,
                                    Runtime& runtime) {
  if (!given && !asks_variables(variable, earlier, runtime)) return std::nullopt;
  Plugin plugin = resolve(given.value_or(Plugin()), runtime.environment());
  if (given) runtime.environment().set(variable, "true");
  return plugin;
}

// The plugins of the options, resolved; empty where an earlier Accelerator's stay, or for none.
DeepSpeedPlugins chosen_deepspeed(const AcceleratorOptions& options, Runtime& runtime) {
  DeepSpeedPlugins plugins = options.deepspeed_plugins;
  TORCH_CHECK_VALUE(!options.deepspeed_plugin || plugins.empty(),
                    "deepspeed_plugin and deepspeed_plugins are the same setting; give one of "
                    "them");
  if (options.deepspeed_plugin) plugins.emplace_back("", *options.deepspeed_plugin);
  if (plugins.empty()) {
    if (!asks_variables(kUseDeepSpeed, &AcceleratorState::deepspeed_plugin, runtime)) return {};
    plugins.emplace_back("", DeepSpeedPlugin());
  }
  std::set<std::string> names;
  for (auto& [name, plugin] : plugins) {
    TORCH_CHECK_VALUE(names.insert(name).second, "deepspeed_plugins has two plugins \"", name,
                      "\"; models are prepared by one, which its name selects");
    plugin = resolve(std::move(plugin), runtime.environment(), runtime.files());
    zero_config(plugin.deepspeed_config(), ZeroAuto::kAllowed);
    warn_in_vain(plugin, runtime);
  }
  runtime.environment().set(kUseDeepSpeed, "true");
  return plugins;
}

// Null where replicas of the model are all that there is.
std::optional<ParallelismConfig> mesh_of(const MegatronLMPlugin& plugin, const Runtime& runtime) {
  const int64_t ranks = runtime.topology().world_size;
  const ParallelismOptions mesh = parallelism_of(plugin, ranks);
  if (*mesh.dp_replicate_size == ranks) return std::nullopt;
  return ParallelismConfig(mesh);
}

std::optional<TorchDynamoPlugin> chosen_dynamo(const AcceleratorOptions& options,
                                               const Runtime& runtime) {
  TORCH_CHECK_VALUE(!options.dynamo_plugin || !options.dynamo_backend,
                    "dynamo_plugin and dynamo_backend are the same setting; give one of them");
  TorchDynamoPlugin given = options.dynamo_plugin.value_or(TorchDynamoPlugin());
  if (options.dynamo_backend) given.backend = options.dynamo_backend;
  // Read first, so that a mistake in it is an error even if an earlier Accelerator overrides it.
  TorchDynamoPlugin plugin = resolve(std::move(given), runtime.environment());
  check(plugin);
  if (compiles(plugin)) check_compile_backend(backend_of(plugin));
  if (options.dynamo_plugin || options.dynamo_backend) return plugin;
  return AcceleratorState::find(runtime) != nullptr ? std::nullopt
                                                    : std::optional(std::move(plugin));
}

// The recipe that the configurations of ZeRO ask for by "msamp" becomes one of the handlers.
void take_msamp(const DeepSpeedPlugins& plugins, Fp8Handlers& fp8) {
  if (plugins.empty()) return;
  const auto msamp_of = [](const DeepSpeedPlugin& plugin) {
    return zero_config(plugin.deepspeed_config(), ZeroAuto::kAllowed).msamp;
  };
  const ZeroMsamp msamp = msamp_of(plugins.front().second);
  for (const auto& [name, plugin] : plugins) {
    TORCH_CHECK_VALUE(msamp_of(plugin) == msamp, "deepspeed_plugins: \"", plugins.front().first,
                      "\" and \"", name,
                      "\" have another \"msamp\", but the models of a job compute in one way");
  }
  if (!msamp.enabled) return;
  const char* const where =
      "deepspeed_plugin: its configuration has msamp.enabled (enable_msamp, "
      "ACCELERATE_FP8_BACKEND=MSAMP)";
  TORCH_CHECK_VALUE(!fp8.te && !fp8.ao && !fp8.recipe, where,
                    ", but the kwargs_handlers have another recipe for fp8; leave one of them out");
  if (!fp8.msamp) fp8.msamp.emplace();
  if (!fp8.msamp->opt_level) fp8.msamp->opt_level = msamp.opt_level;
  TORCH_CHECK_VALUE(*fp8.msamp->opt_level == msamp.opt_level, where, " with opt_level ",
                    msamp.opt_level, ", but MSAMPRecipeKwargs has ", *fp8.msamp->opt_level);
}

}  // namespace

AcceleratorOptions internal::with_environment(AcceleratorOptions options, Runtime& runtime) {
  const Environment& environment = runtime.environment();
  options.cpu = options.cpu || parse_flag_from_env(kUseCpu, false, environment);
  if (options.gradient_accumulation_plugin) {
    TORCH_CHECK_VALUE(options.gradient_accumulation_steps.value_or(1) == 1,
                      "gradient_accumulation_steps and gradient_accumulation_plugin are the same "
                      "setting; give one of them");
  } else {
    // "auto" is ZeRO's: as the program has it.
    const bool is_auto = environment.get_or(kAccumulationSteps, "") == "auto";
    if (!is_auto || !parse_flag_from_env(kUseDeepSpeed, false, environment)) {
      if (auto steps = parse_int_from_env(kAccumulationSteps, environment)) {
        options.gradient_accumulation_steps = steps;
      }
    }
    TORCH_CHECK_VALUE(options.gradient_accumulation_steps.value_or(1) >= 1,
                      "gradient_accumulation_steps must be at least 1, got ",
                      *options.gradient_accumulation_steps);
    if (options.gradient_accumulation_steps) {
      options.gradient_accumulation_plugin =
          GradientAccumulationPlugin{.num_steps = options.gradient_accumulation_steps};
    }
  }
  check_one_engine(options, environment);
  const bool is_given = options.fsdp_plugin.has_value();
  options.fsdp_plugin =
      chosen_plugin(options.fsdp_plugin, kUseFsdp, &AcceleratorState::fsdp_plugin, runtime);
  if (is_given) warn_in_vain(*options.fsdp_plugin, runtime);
  options.deepspeed_plugins = chosen_deepspeed(options, runtime);
  options.deepspeed_plugin.reset();
  options.megatron_lm_plugin = chosen_plugin(options.megatron_lm_plugin, kUseMegatron,
                                             &AcceleratorState::megatron_lm_plugin, runtime);
  if (options.megatron_lm_plugin) {
    options.parallelism_config = mesh_of(*options.megatron_lm_plugin, runtime);
  }
  options.dynamo_plugin = chosen_dynamo(options, runtime);
  options.dynamo_backend.reset();
  options.parallelism_config = chosen_parallelism(options, runtime);
  if (!has_pipeline_plan(options)) {
    options.kwargs_handlers.emplace_back(pipeline_plan_of(environment));
  }
  options.mixed_precision = chosen_precision(options, runtime);
  check_precision(*options.mixed_precision, runtime);
  if (options.split_batches) {
    TORCH_CHECK_VALUE(*options.split_batches || !options.dataloader_config.split_batches,
                      "split_batches=false contradicts dataloader_config.split_batches=true");
    options.dataloader_config.split_batches = *options.split_batches;
  }
  return options;
}

KwargsHandlers internal::handlers_of(const AcceleratorOptions& options) {
  KwargsHandlers handlers = KwargsHandlers::from_list(options.kwargs_handlers);
  check_technique_options(all_techniques(), handlers, *options.mixed_precision);
  take_msamp(options.deepspeed_plugins, handlers.fp8);
  return handlers;
}

ProjectConfiguration internal::project_of(const AcceleratorOptions& options) {
  ProjectConfiguration project = options.project_config;
  if (!options.project_dir) return project;
  TORCH_CHECK_VALUE(!project.project_dir || *project.project_dir == *options.project_dir,
                    "project_dir=\"", *options.project_dir,
                    "\" contradicts project_config's project_dir=\"", *project.project_dir, "\"");
  project.set_directories(options.project_dir);
  return project;
}

}  // namespace accelerate
