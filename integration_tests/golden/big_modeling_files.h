/// The kinds of big_modeling's cases that are about files: offload_weight, offload_state_dict,
/// load_offloaded, weights_loader, load_file and load_checkpoint.
///
/// Threads: pure functions.
#pragma once

#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "accelerate/platform/file_system.h"

namespace accelerate::golden {

/// The files of a folder: JSON as values, the bytes of others in base64. Null without a folder.
nlohmann::json listing_of(FileSystem& files, const std::string& folder);

/// A file of weights: safetensors where it has "metadata", else PyTorch's.
void write_weights(FileSystem& files, const std::string& path, const nlohmann::json& file);

/// The files of a case, by their names, in a new folder.
void write_checkpoint(FileSystem& files, const std::string& folder, const nlohmann::json& contents);

/// The answer of such a case; nothing for other kinds.
std::optional<nlohmann::json> run_big_modeling_files(const nlohmann::json& in);

}  // namespace accelerate::golden
