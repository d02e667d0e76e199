/// Automatic mixed precision for a scope: matrix products are computed in half precision, operators
/// that need float32's range or digits in float32. LibTorch decides operator by operator.
///
/// Local.
/// Threads: a scope acts on the thread that made it, and ends there.
/// Mirrors: torch.autocast; accelerate utils/modeling.py, get_mixed_precision_context_manager.
#pragma once

#include <optional>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include "accelerate/base/enums.h"
#include "accelerate/config/kwargs_handlers.h"

namespace accelerate {

/// How operators on one kind of device compute.
struct AutocastSettings {
  c10::DeviceType device = c10::DeviceType::CPU;
  at::ScalarType dtype = at::kBFloat16;
  bool enabled = true;
  /// Absent: as outside of the scope.
  std::optional<bool> cache_enabled = std::nullopt;
};

/// The settings of `precision` on devices of this kind; none for `no`. For fp8 they are bf16's, in
/// which everything is computed that is not computed in 8 bits.
/// Errors: c10::ValueError for a kind of device for which LibTorch has no autocast.
std::optional<AutocastSettings> autocast_settings(PrecisionType precision, c10::DeviceType device,
                                                  const AutocastKwargs& kwargs = {});

/// Applies settings to this thread's operators; without settings nothing changes. Scopes nest, and
/// end in the reverse order. Cast weights are cached until the outermost scope ends, a scope that
/// does not record gradients ends, or a prepared optimizer steps.
class AutocastScope {
 public:
  explicit AutocastScope(const std::optional<AutocastSettings>& settings);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  // The settings before the scope.
  std::optional<AutocastSettings> outside_;
};

/// Inside of a scope of this thread, weights are cast anew from here on: they have changed.
void drop_cast_weights();

/// A scope with the job's mixed precision; it changes nothing if `native_amp` is off.
/// Local. Errors: c10::ValueError before the first Accelerator.
[[nodiscard]] AutocastScope get_mixed_precision_context_manager(
    bool native_amp = false, const AutocastKwargs& autocast_kwargs = {});

}  // namespace accelerate
