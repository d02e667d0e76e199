/// Values of trackers as JSON.
///
/// Numbers keep all their digits. JSON has no words for numbers that are not finite: they are the
/// texts "NaN", "Infinity" and "-Infinity", which any reader of JSON takes, and Python's float(),
/// JavaScript's Number() and Java's parseDouble() turn into numbers again. Tensors are nested
/// lists. A name that comes twice has its last value. Text that is no UTF-8 has U+FFFD for what is
/// none.
/// Threads: pure functions.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "accelerate/tracking/value.h"

namespace accelerate::trackers {

nlohmann::ordered_json json_value(const TrackerValue& value);
nlohmann::ordered_json json_value(const TrackerDict& dict);
/// Of a number, finite or not.
nlohmann::ordered_json json_number(double number);

/// On one line, without a newline; or on several with that many spaces for each level. Any text in
/// `json` is fit.
std::string json_text(const nlohmann::ordered_json& json, int indent = -1);

/// The text, with U+FFFD for what is no UTF-8.
std::string valid_utf8(const std::string& text);

}  // namespace accelerate::trackers
