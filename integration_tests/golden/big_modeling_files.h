/// The kinds of big_modeling's cases that are about files: offload_weight, offload_state_dict,
/// load_offloaded, weights_loader, load_file and load_checkpoint.
///
/// Threads: pure functions.
#pragma once

#include <optional>

#include <nlohmann/json.hpp>

namespace accelerate::golden {

/// The answer of such a case; nothing for other kinds.
std::optional<nlohmann::json> run_big_modeling_files(const nlohmann::json& in);

}  // namespace accelerate::golden
