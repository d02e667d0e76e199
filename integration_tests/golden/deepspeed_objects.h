/// The kinds of deepspeed_plugin's cases that are about DeepSpeed's own objects: map_optimizer,
/// engine, optimizer_wrapper and
/// optimizer_mode. Where HF Accelerate calls DeepSpeed, the answer is what the native
/// engine was seen to do.
///
/// Errors:  CaseError.
/// Threads: pure functions.
#pragma once

#include <optional>

#include <nlohmann/json.hpp>

namespace accelerate::golden {

/// The answer of such a case; nothing for other kinds.
std::optional<nlohmann::json> run_deepspeed_objects(const nlohmann::json& in);

}  // namespace accelerate::golden
