/// Automatic mixed precision around a piece of code: matrix products compute in half precision,
/// what needs the range or the digits stays in float32. LibTorch decides operator by operator.
///
/// Threads: the scope belongs to the thread that made it, and so does what it changes.
/// Mirrors: torch.autocast; accelerate utils/modeling.py, get_mixed_precision_context_manager.
#pragma once

#include <optional>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include "accelerate/base/enums.h"
#include "accelerate/config/kwargs_handlers.h"

namespace accelerate {

/// What operators on one kind of device are to compute in.
struct AutocastSettings {
  c10::DeviceType device = c10::DeviceType::CPU;
  at::ScalarType dtype = at::kBFloat16;
  bool enabled = true;
  /// Absent: as it is outside.
  std::optional<bool> cache_enabled = std::nullopt;
};

/// What `precision` asks for on devices of this kind: nothing for `no`. In fp8, what is not
/// computed in 8 bits computes in bf16.
/// Errors: c10::ValueError for a kind of device for which LibTorch has no autocast.
std::optional<AutocastSettings> autocast_settings(PrecisionType precision, c10::DeviceType device,
                                                  const AutocastKwargs& kwargs = {});

/// While it lives, operators of this thread compute as the settings say; without settings nothing
/// changes. Scopes nest, and end in the reverse order. Weights that were cast are kept until the
/// outermost scope ends.
class AutocastScope {
 public:
  explicit AutocastScope(const std::optional<AutocastSettings>& settings);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  // How it was outside.
  std::optional<AutocastSettings> outside_;
};

/// The scope in which models of the Runtime's Accelerators compute; none where `native_amp` is off.
/// Local. Errors: c10::ValueError before the first Accelerator.
[[nodiscard]] AutocastScope get_mixed_precision_context_manager(
    bool native_amp = false, const AutocastKwargs& autocast_kwargs = {});

}  // namespace accelerate
