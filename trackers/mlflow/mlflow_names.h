/// What MLflow's documentation says of names and values.
///
/// Threads: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace accelerate::trackers {

/// Of what one request may hold.
inline constexpr size_t kMlflowMaxMetrics = 1000;
inline constexpr size_t kMlflowMaxTexts = 100;
inline constexpr size_t kMlflowMaxBytes = 1000000;
/// Of a metric's, param's or tag's name, in bytes.
inline constexpr size_t kMlflowMaxName = 250;
/// Of a param's value, in characters.
inline constexpr size_t kMlflowMaxParam = 500;
/// Of a tag's value, in characters; of an experiment's, and of a run's on older servers.
inline constexpr size_t kMlflowMaxTag = 5000;

/// What is wrong with the name of a metric, param or tag; empty: nothing. Letters, digits,
/// "_-. :/" are right, as long as they make no path that leads elsewhere.
std::string mlflow_name_error(std::string_view name);

/// The same of an artifact's path, which may hold other characters.
std::string mlflow_path_error(std::string_view path);

/// How many characters there are in a text of UTF-8.
size_t utf8_length(std::string_view text);
/// The first so many of them.
std::string utf8_start(std::string_view text, size_t length);

}  // namespace accelerate::trackers
