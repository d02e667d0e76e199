#include "accelerate/precision/autocast.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include "accelerate/state/accelerator_state.h"

namespace accelerate {

std::optional<AutocastSettings> autocast_settings(PrecisionType precision, c10::DeviceType device,
                                                  const AutocastKwargs& kwargs) {
  if (precision == PrecisionType::kNo) return std::nullopt;
  TORCH_CHECK_VALUE(at::autocast::is_autocast_available(device), "mixed precision \"",
                    to_string(precision), "\": LibTorch has no automatic mixed precision for ",
                    c10::DeviceTypeName(device, /*lower_case=*/true), " devices");
  return AutocastSettings{
      .device = device,
      .dtype = precision == PrecisionType::kFp16 ? at::kHalf : at::kBFloat16,
      .enabled = kwargs.enabled,
      .cache_enabled = kwargs.cache_enabled,
  };
}

AutocastScope::AutocastScope(const std::optional<AutocastSettings>& settings) {
  if (!settings) return;
  const c10::DeviceType device = settings->device;
  outside_ = {.device = device,
              .dtype = at::autocast::get_autocast_dtype(device),
              .enabled = at::autocast::is_autocast_enabled(device),
              .cache_enabled = at::autocast::is_autocast_cache_enabled()};
  at::autocast::set_autocast_enabled(device, settings->enabled);
  at::autocast::set_autocast_dtype(device, settings->dtype);
  if (settings->cache_enabled) at::autocast::set_autocast_cache_enabled(*settings->cache_enabled);
  at::autocast::increment_nesting();
}

AutocastScope::~AutocastScope() {
  if (!outside_) return;
  const bool is_outermost = at::autocast::decrement_nesting() == 0;
  // LibTorch would give casts without a graph to passes that record gradients.
  if (is_outermost || !at::GradMode::is_enabled()) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(outside_->device, outside_->enabled);
  at::autocast::set_autocast_dtype(outside_->device, outside_->dtype);
  at::autocast::set_autocast_cache_enabled(*outside_->cache_enabled);
}

void drop_cast_weights() {
  at::autocast::increment_nesting();
  if (at::autocast::decrement_nesting() > 0) at::autocast::clear_cache();
}

AutocastScope get_mixed_precision_context_manager(bool native_amp,
                                                  const AutocastKwargs& autocast_kwargs) {
  const AcceleratorState& state = AcceleratorState::get();
  return AutocastScope(native_amp ? autocast_settings(state.mixed_precision(),
                                                      state.device().type(), autocast_kwargs)
                                  : std::nullopt);
}

}  // namespace accelerate
