/// Values of trackers as JSON and YAML, and without tensors.
///
/// Tensors become nested lists of bools, ints or floats by their dtype; one without dimensions
/// becomes a number. A name that comes twice has its last value.
/// JSON has no numbers that are not finite: they become the texts "NaN", "Infinity" and
/// "-Infinity", which Python's float(), JavaScript's Number() and Java's parseDouble() turn into
/// numbers again.
/// Threads: pure functions.
/// Mirrors: accelerate utils.operations.listify.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "accelerate/tracking/value.h"

namespace accelerate::trackers {

/// The value with lists in place of tensors, also within lists and dictionaries.
TrackerValue listify(const TrackerValue& value);

nlohmann::ordered_json json_value(const TrackerValue& value);
nlohmann::ordered_json json_value(const TrackerDict& dict);
/// The number, or its text if it is not finite.
nlohmann::ordered_json json_number(double number);

/// One line without a newline, or several lines with `indent` spaces for each level. Bytes that are
/// not UTF-8 become U+FFFD.
std::string json_text(const nlohmann::ordered_json& json, int indent = -1);

/// The text with U+FFFD in place of bytes that are not UTF-8.
std::string valid_utf8(const std::string& text);

/// A YAML document, see accelerate/base/json_text.h.
std::string yaml_text(const TrackerDict& values);

}  // namespace accelerate::trackers
