/// MLflow's documented limits of names and values.
///
/// Threads: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace accelerate::trackers {

/// The limits of one request.
inline constexpr size_t kMlflowMaxMetrics = 1000;
inline constexpr size_t kMlflowMaxTexts = 100;
inline constexpr size_t kMlflowMaxBytes = 1000000;
/// The limit of a metric's, param's or tag's name, in bytes.
inline constexpr size_t kMlflowMaxName = 250;
/// The limit of a param's value, in characters.
inline constexpr size_t kMlflowMaxParam = 500;
/// The limit of a tag's value, in characters, for experiments and for runs on older servers.
inline constexpr size_t kMlflowMaxTag = 5000;

/// The error in the name of a metric, param or tag; empty if it is valid: letters, digits and
/// "_-. :/" that do not form a path out of the folder.
std::string mlflow_name_error(std::string_view name);

/// The same for an artifact's path, which may contain other characters.
std::string mlflow_path_error(std::string_view path);

/// The number of characters in a UTF-8 text.
size_t utf8_length(std::string_view text);
/// Its first `length` characters.
std::string utf8_start(std::string_view text, size_t length);

}  // namespace accelerate::trackers
