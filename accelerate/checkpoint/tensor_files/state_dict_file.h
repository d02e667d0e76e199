/// How a StateDict lies in one file: its tensors as safetensors, its values as JSON in the
/// metadata.
///
/// Errors: CheckpointError naming the file.
#pragma once

#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "accelerate/checkpoint/tensor_files/safetensors.h"

namespace accelerate::internal {

/// The metadata of a file that holds tensors and, unless it is empty, this JSON text.
SafetensorsMetadata state_metadata(const std::string& values);

/// The values beside a file's tensors; nothing where there are none.
std::optional<nlohmann::ordered_json> state_values(const SafetensorsFile& file,
                                                   const std::string& path);

/// The values of a file without tensors.
nlohmann::ordered_json parse_state_values(const std::string& text, const std::string& path);

}  // namespace accelerate::internal
