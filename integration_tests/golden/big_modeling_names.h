/// The kinds of big_modeling's cases that are about sizes and device maps: max_layer,
/// clean_device_map, get_max_memory, balanced and check_map.
///
/// Threads: pure functions.
#pragma once

#include <optional>

#include <nlohmann/json.hpp>

namespace accelerate::golden {

/// The answer of such a case; nothing for other kinds.
std::optional<nlohmann::json> run_big_modeling_names(const nlohmann::json& in);

}  // namespace accelerate::golden
