/// The kinds of big_modeling's cases about hooks: hook_order and casting.
///
/// Threads: the rank's thread.
#pragma once

#include <optional>

#include <nlohmann/json.hpp>

namespace accelerate::golden {

/// The answer of such a case; nothing for other kinds.
std::optional<nlohmann::json> run_big_modeling_hooks(const nlohmann::json& in);

}  // namespace accelerate::golden
