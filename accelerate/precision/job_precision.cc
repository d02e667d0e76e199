#include "accelerate/precision/job_precision.h"

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "accelerate/base/json_text.h"
#include "accelerate/values/fields.h"

namespace accelerate {
namespace {

std::string text_of(const Fp8Plan& plan) {
  const std::string recipe =
      std::visit([](const auto& kwargs) { return json_text(to_dict(kwargs)); }, plan.recipe);
  return std::string(to_string(plan.backend())) + " " + recipe;
}

}  // namespace

void JobPrecision::choose(PrecisionType type, bool in_fp8, const KwargsHandlers& handlers,
                          DistributedType distributed_type, const ProcessGroupPtr& group,
                          const Environment& environment) {
  TORCH_CHECK_VALUE(!in_fp8 || fp8_ || !is_chosen_,
                    "fp8 contradicts an earlier Accelerator on this Runtime, which computes "
                    "without it");
  type_ = type;
  if (in_fp8) choose_fp8(handlers.fp8, environment);
  is_chosen_ = true;
  const bool scales = type == PrecisionType::kFp16 || fp8_backend() == FP8BackendType::kMsamp;
  if (scales && scaler_ == nullptr) {
    if (handlers.scaler != GradScalerKwargs()) scaler_kwargs_ = handlers.scaler;
    if (distributed_type != DistributedType::kDeepSpeed) {
      scaler_ = std::make_shared<SharedScaler>(GradScaler(handlers.scaler, group));
    }
  }
  TORCH_CHECK_VALUE(scaler_ == nullptr || handlers.scaler == GradScalerKwargs() ||
                        handlers.scaler == scaler_kwargs_,
                    "GradScalerKwargs ", json_text(to_kwargs(handlers.scaler)),
                    " contradict an earlier Accelerator on this Runtime, which had ",
                    json_text(to_kwargs(scaler_kwargs_)));
}

void JobPrecision::apply_zero_config(const ZeroConfig& zero, const ProcessGroupPtr& group) {
  std::optional<GradScaler> scaler = zero_grad_scaler(zero, group);
  if (!scaler || scaler_ != nullptr) return;
  TORCH_CHECK_VALUE(scaler_kwargs_ == GradScalerKwargs(), "GradScalerKwargs ",
                    json_text(to_kwargs(scaler_kwargs_)),
                    ": with a deepspeed_plugin the \"fp16\" of its configuration says how losses "
                    "are scaled");
  scaler_ = std::make_shared<SharedScaler>(std::move(*scaler));
}

void JobPrecision::choose_fp8(const Fp8Handlers& handlers, const Environment& environment) {
  if (fp8_ && !handlers.any()) return;
  Fp8Plan plan = resolve_fp8(handlers, environment);
  TORCH_CHECK_VALUE(!fp8_ || text_of(*fp8_) == text_of(plan), "fp8 by ", text_of(plan),
                    " contradicts an earlier Accelerator on this Runtime, which has ",
                    text_of(*fp8_));
  if (!fp8_) fp8_ = std::move(plan);
}

FP8BackendType JobPrecision::fp8_backend() const {
  return fp8_ ? fp8_->backend() : FP8BackendType::kNo;
}

bool JobPrecision::packs_moments() const {
  const auto* msamp = fp8_ ? std::get_if<MSAMPRecipeKwargs>(&fp8_->recipe) : nullptr;
  return msamp != nullptr && msamp->opt_level == "O2";
}

}  // namespace accelerate
