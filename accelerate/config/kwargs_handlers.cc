#include "accelerate/config/kwargs_handlers.h"

#include <array>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "absl/functional/overload.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/config/option_fields.h"
#include "accelerate/platform/environment.h"
#include "accelerate/runtime/env_parsing.h"
#include "accelerate/values/texts.h"

namespace accelerate {
namespace {

constexpr options::Section kFp8 = options::Section::kFp8;
constexpr char kBackend[] = "ACCELERATE_FP8_BACKEND";

void check_at_least(const char* field, int64_t value, int64_t least) {
  TORCH_CHECK_VALUE(value >= least, "TERecipeKwargs: ", field, " is ", value, ", less than ",
                    least);
}

FP8BackendType backend_of(const std::string& text, const char* source) {
  TORCH_CHECK_VALUE(contains<FP8BackendType>(text), source, "=\"", text,
                    "\" is none of AO, TE, MSAMP");
  return from_string<FP8BackendType>(text);
}

// The plan that the deprecated handler stands for.
Fp8Plan plan_of(const FP8RecipeKwargs& kwargs, const Environment& environment) {
  const bool given = kwargs.backend.has_value();
  std::optional<std::string> backend = given ? kwargs.backend : environment.get(kBackend);
  // Only MS-AMP has an opt_level, so it shows which backend an old program meant.
  if (!backend) backend = kwargs.opt_level ? "MSAMP" : "TE";
  switch (backend_of(*backend, given ? "FP8RecipeKwargs: backend" : kBackend)) {
    case FP8BackendType::kTe:
      return {resolve(TERecipeKwargs{.use_autocast_during_eval = kwargs.use_autocast_during_eval,
                                     .margin = kwargs.margin,
                                     .interval = kwargs.interval,
                                     .fp8_format = kwargs.fp8_format,
                                     .amax_history_len = kwargs.amax_history_len,
                                     .amax_compute_algo = kwargs.amax_compute_algo,
                                     .override_linear_precision = kwargs.override_linear_precision,
                                     .use_mxfp8_block_scaling = kwargs.use_mxfp8_block_scaling},
                      environment)};
    case FP8BackendType::kMsamp:
      return {resolve(MSAMPRecipeKwargs{.opt_level = kwargs.opt_level}, environment)};
    case FP8BackendType::kAo:
    case FP8BackendType::kNo: break;
  }
  TORCH_CHECK_VALUE(false, "FP8RecipeKwargs: its backend is TE or MSAMP, not \"", *backend, "\"",
                    given ? "" : absl::StrCat(", which ", kBackend, " says"));
}

std::vector<std::string> names(const Fp8Handlers& handlers) {
  std::vector<std::string> names;
  if (handlers.recipe) names.push_back("FP8RecipeKwargs");
  if (handlers.ao) names.push_back("AORecipeKwargs");
  if (handlers.te) names.push_back("TERecipeKwargs");
  if (handlers.msamp) names.push_back("MSAMPRecipeKwargs");
  return names;
}

}  // namespace

absl::Duration InitProcessGroupKwargs::effective_timeout() const {
  // The defaults of torch.distributed.
  return timeout.value_or(absl::Minutes(backend == "nccl" ? 10 : 30));
}

void check_init_method(const InitProcessGroupKwargs& kwargs, const Environment& environment) {
  if (!kwargs.init_method || *kwargs.init_method == "env://") return;
  const std::string host = environment.get_or(env::kMasterAddr, "");
  const std::string port = environment.get_or(env::kMasterPort, "");
  const bool is_tcp = kwargs.init_method->starts_with("tcp://");
  // One process without a launcher has no address to compare with.
  if (is_tcp && host.empty() && port.empty()) return;
  const bool is_ipv6 = host.find(':') != std::string::npos;
  const std::string address =
      is_ipv6 ? absl::StrCat("tcp://[", host, "]:", port) : absl::StrCat("tcp://", host, ":", port);
  if (is_tcp && *kwargs.init_method == address) return;
  TORCH_CHECK_VALUE(false, "InitProcessGroupKwargs: init_method \"", *kwargs.init_method,
                    "\" is not the rendezvous of this job; leave it out, or give \"env://\" or "
                    "the address that ",
                    env::kMasterAddr, " and ", env::kMasterPort, " say",
                    host.empty() && port.empty() ? "" : absl::StrCat(" (\"", address, "\")"));
}

void check(const ProfileKwargs& kwargs) {
  static const std::set<std::string> kActivities = {"cpu", "cuda", "hpu", "mtia", "xpu"};
  for (const std::string& activity : kwargs.activities) {
    TORCH_CHECK_VALUE(kActivities.contains(activity), "Invalid profiler activity: \"", activity,
                      "\". Must be one of ", absl::StrJoin(kActivities, ", "));
  }
  if (!kwargs.schedule_option) return;
  visit_fields(*kwargs.schedule_option, [](const char* name, int64_t value) {
    TORCH_CHECK_VALUE(value >= 0, "Invalid profiler schedule: ", name, "=", value,
                      " is less than 0");
  });
  TORCH_CHECK_VALUE(kwargs.schedule_option->active > 0,
                    "Invalid profiler schedule: active=0 records nothing; it must be at least 1");
}

FP8BackendType Fp8Plan::backend() const {
  return std::visit(absl::Overload{[](const TERecipeKwargs&) { return FP8BackendType::kTe; },
                                   [](const MSAMPRecipeKwargs&) { return FP8BackendType::kMsamp; },
                                   [](const AORecipeKwargs&) { return FP8BackendType::kAo; }},
                    recipe);
}

TERecipeKwargs resolve(TERecipeKwargs kwargs, const Environment& environment) {
  fill_fields(kwargs, kFp8, environment);
  if (!kwargs.override_linear_precision) {
    kwargs.override_linear_precision = {
        parse_flag_from_env("ACCELERATE_FP8_OVERRIDE_FPROP", false, environment),
        parse_flag_from_env("ACCELERATE_FP8_OVERRIDE_DGRAD", false, environment),
        parse_flag_from_env("ACCELERATE_FP8_OVERRIDE_WGRAD", false, environment)};
  }
  // HF Accelerate takes both in any case.
  absl::AsciiStrToUpper(&*kwargs.fp8_format);
  absl::AsciiStrToLower(&*kwargs.amax_compute_algo);
  TORCH_CHECK_VALUE(*kwargs.fp8_format != "E5M2",
                    "TERecipeKwargs: fp8_format E5M2 in both directions is not for training: no "
                    "device multiplies E5M2 by E5M2. Use HYBRID or E4M3");
  TORCH_CHECK_VALUE(*kwargs.fp8_format == "HYBRID" || *kwargs.fp8_format == "E4M3",
                    "TERecipeKwargs: fp8_format \"", *kwargs.fp8_format,
                    "\" is neither HYBRID nor E4M3");
  check_choices(kwargs, kFp8, "TERecipeKwargs: ");
  check_at_least("margin", *kwargs.margin, 0);
  check_at_least("interval", *kwargs.interval, 1);
  check_at_least("amax_history_len", *kwargs.amax_history_len, 1);
  return kwargs;
}

MSAMPRecipeKwargs resolve(MSAMPRecipeKwargs kwargs, const Environment& environment) {
  fill_fields(kwargs, kFp8, environment);
  check_choices(kwargs, kFp8, "MSAMPRecipeKwargs: ");
  return kwargs;
}

AORecipeKwargs resolve(AORecipeKwargs kwargs, const Environment& environment) {
  if (kwargs.config) {
    TORCH_CHECK_VALUE(kwargs.config->recipe == "tensorwise",
                      "AORecipeKwargs: the config's recipe \"", kwargs.config->recipe,
                      "\" is not in this version; use \"tensorwise\"");
    // The config decides, so a flag beside it may only repeat it.
    const auto take = [](std::optional<bool>& flag, bool configured, const char* name) {
      TORCH_CHECK_VALUE(flag.value_or(configured) == configured, "AORecipeKwargs: ", name,
                        " contradicts that of the config");
      flag = configured;
    };
    take(kwargs.pad_inner_dim, kwargs.config->pad_inner_dim, "pad_inner_dim");
    take(kwargs.enable_fsdp_float8_all_gather, kwargs.config->enable_fsdp_float8_all_gather,
         "enable_fsdp_float8_all_gather");
    return kwargs;
  }
  fill_fields(kwargs, kFp8, environment);
  return kwargs;
}

Fp8Plan resolve_fp8(const Fp8Handlers& handlers, const Environment& environment) {
  const std::vector<std::string> given = names(handlers);
  TORCH_CHECK_VALUE(given.size() <= 1,
                    "kwargs_handlers: only one way to compute in fp8 can be "
                    "given, not ",
                    absl::StrJoin(given, " and "));
  if (handlers.recipe) return plan_of(*handlers.recipe, environment);
  if (handlers.ao) return {resolve(*handlers.ao, environment)};
  if (handlers.te) return {resolve(*handlers.te, environment)};
  if (handlers.msamp) return {resolve(*handlers.msamp, environment)};
  const std::optional<std::string> text = environment.get(kBackend);
  // "NO" is the launcher's way of saying nothing.
  switch (text ? backend_of(*text, kBackend) : FP8BackendType::kNo) {
    case FP8BackendType::kTe: return {resolve(TERecipeKwargs{}, environment)};
    case FP8BackendType::kMsamp: return {resolve(MSAMPRecipeKwargs{}, environment)};
    case FP8BackendType::kAo:
    case FP8BackendType::kNo: break;
  }
  return {resolve(AORecipeKwargs{}, environment)};
}

void check_fp8_handlers(const Fp8Handlers& handlers, PrecisionType precision) {
  if (precision == PrecisionType::kFp8) return;
  const std::vector<std::string> given = names(handlers);
  TORCH_CHECK_VALUE(given.empty(), "kwargs_handlers: ", absl::StrJoin(given, " and "),
                    " needs mixed_precision \"fp8\", which is \"", to_string(precision), "\"");
}

KwargsHandlers KwargsHandlers::from_list(const std::vector<KwargsHandler>& list) {
  KwargsHandlers handlers;
  const auto keep = absl::Overload{
      [&](const DistributedDataParallelKwargs& ddp) { handlers.ddp = ddp; },
      [&](const InitProcessGroupKwargs& init) { handlers.init = init; },
      [&](const ProfileKwargs& profile) { handlers.profile = profile; },
      [&](const AutocastKwargs& autocast) { handlers.autocast = autocast; },
      [&](const GradScalerKwargs& scaler) { handlers.scaler = scaler; },
      [&](const TERecipeKwargs& te) { handlers.fp8.te = te; },
      [&](const MSAMPRecipeKwargs& msamp) { handlers.fp8.msamp = msamp; },
      [&](const AORecipeKwargs& ao) { handlers.fp8.ao = ao; },
      [&](const FP8RecipeKwargs& recipe) { handlers.fp8.recipe = recipe; },
      [&](const ShardedDataParallelKwargs& sharded) {
        TORCH_CHECK_VALUE(sharded.group_bytes > 0, "ShardedDataParallelKwargs: group_bytes is ",
                          sharded.group_bytes, ", less than 1");
        handlers.sharded = sharded;
      },
      [&](const TensorParallelPlan& plan) { handlers.tensor_parallel = plan; },
      [&](const PipelinePlan& plan) {
        TORCH_CHECK_VALUE(plan.stages_per_rank > 0, "PipelinePlan: stages_per_rank is ",
                          plan.stages_per_rank, ", less than 1");
        TORCH_CHECK_VALUE(plan.micro_batches > 0, "PipelinePlan: micro_batches is ",
                          plan.micro_batches, ", less than 1");
        handlers.pipeline = plan;
      },
  };
  std::array<bool, std::variant_size_v<KwargsHandler>> seen{};
  for (const KwargsHandler& handler : list) {
    const auto* plan = std::get_if<TensorParallelPlan>(&handler);
    if (plan != nullptr && !plan->model_class.empty()) {
      const bool is_new =
          handlers.tensor_parallel_by_class.try_emplace(plan->model_class, *plan).second;
      TORCH_CHECK_VALUE(is_new,
                        "kwargs_handlers: only one TensorParallelPlan for models of class \"",
                        plan->model_class, "\" can be given");
      continue;
    }
    TORCH_CHECK_VALUE(!std::exchange(seen[handler.index()], true), "kwargs_handlers: only one ",
                      std::visit([](const auto& each) { return name_of_class(each); }, handler),
                      " can be given");
    std::visit(keep, handler);
  }
  return handlers;
}

}  // namespace accelerate
