/// The kinds of big_modeling's cases that are about names, sizes, ties and device maps: names,
/// max_layer, tied, clean_device_map, get_max_memory, balanced, check_map and extract.
///
/// Threads: pure functions.
#pragma once

#include <optional>

#include <nlohmann/json.hpp>

namespace accelerate::golden {

/// The answer of such a case; nothing for other kinds.
std::optional<nlohmann::json> run_big_modeling_names(const nlohmann::json& in);

}  // namespace accelerate::golden
