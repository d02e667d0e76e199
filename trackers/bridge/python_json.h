/// Values and calls as bridge.py reads them.
///
/// None, booleans, numbers, texts and lists are as in JSON. The rest are objects that say what they
/// are: {"float": "nan"}, {"dict": [[name, value], ...]}, {"tensor": sizes, "dtype", "values"},
/// {"png": base64} and {"call": ...}.
/// Errors:  std::invalid_argument for an image that is none, from encode_png.
/// Threads: pure functions.
#pragma once

#include <nlohmann/json.hpp>

#include "trackers/bridge/python_package.h"

namespace accelerate::trackers {

nlohmann::json to_json(const TrackerValue& value);
nlohmann::json to_json(const PythonValue& value);
nlohmann::json to_json(const PythonCall& call);

}  // namespace accelerate::trackers
