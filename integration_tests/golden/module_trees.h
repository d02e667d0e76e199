/// The models of device_map and big_modeling as trees of names and sizes, and what is planned on
/// them as JSON.
///
/// Errors:  CaseError for what is not a model.
/// Threads: pure functions.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "accelerate/device_map/device_map.h"
#include "accelerate/device_map/max_memory.h"
#include "accelerate/device_map/module_sizes.h"
#include "accelerate/device_map/module_tree.h"

namespace accelerate::golden {

/// `tied` are groups of names, of which the first gives the others its tensor.
ModuleTree tree_of(const nlohmann::json& model, const nlohmann::json& tied);

/// Null: none; a text: one.
std::vector<std::string> classes_of(const nlohmann::json& no_split_module_classes);

/// The fields `dtype` and `special_dtypes`, as far as they are there.
SizeOptions size_options_of(const nlohmann::json& in);

/// Limits as pairs of a device and bytes or a text, or an object.
absl::StatusOr<MaxMemory> limits_of(const nlohmann::json& pairs);
nlohmann::json to_json(const MaxMemory& limits);

/// Pairs, or an object.
DeviceMap map_of(const nlohmann::json& map);
nlohmann::json to_json(const DevicePlacement& device);

/// The names in single quotes in a list of sentences, as Python writes lists and sets of texts.
nlohmann::json quoted_names(const nlohmann::json& sentences);

/// A whole number as an integer.
nlohmann::json bytes_json(double bytes);
nlohmann::json to_json(const LargestLayer& largest);

}  // namespace accelerate::golden
