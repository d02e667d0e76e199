/// Device maps that are asked for by a word.
///
/// Local. Threads: the rank's thread.
/// Mirrors: what accelerate big_modeling.py and utils/bnb.py make of a device_map that is a text.
#pragma once

#include <optional>
#include <string>

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/device_map/device_map.h"
#include "accelerate/device_map/infer.h"
#include "accelerate/device_map/max_memory.h"

namespace accelerate::internal {

/// Whether it is "auto", "balanced", "balanced_low_0" or "sequential".
bool is_device_map_strategy(const std::string& text);

/// The inferred map; all strategies but "sequential" balance the accelerators' limits first.
/// \pre is_device_map_strategy(strategy). Errors: those of infer_auto_device_map.
DeviceMap infer_by_strategy(const torch::nn::Module& module, const std::string& strategy,
                            std::optional<MaxMemory> limits, const InferOptions& options);

}  // namespace accelerate::internal
