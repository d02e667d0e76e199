/// Values and records in the formats of files: JSON, YAML, PNG and CSV.
///
/// Tensors become nested lists of bools, ints or floats by their dtype; one without dimensions
/// becomes a number. A name that comes twice has its last value.
/// JSON has no numbers that are not finite: they become the texts "NaN", "Infinity" and
/// "-Infinity", which Python's float(), JavaScript's Number() and Java's parseDouble() turn into
/// numbers again.
/// Threads: pure functions.
/// Mirrors: accelerate utils.operations.listify.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/tracking/tracker.h"
#include "accelerate/tracking/value.h"

namespace accelerate::trackers {

/// Visits the values of nested dictionaries with their names behind each other, as in "lr/head"; an
/// empty dictionary counts as a value.
template <typename Visit>
void for_each_value(const TrackerDict& values, const Visit& visit, const std::string& prefix = "") {
  for (const auto& [name, value] : values) {
    const auto* const dict = value.get_if<TrackerDict>();
    if (dict != nullptr && !dict->empty()) {
      for_each_value(*dict, visit, absl::StrCat(prefix, name, "/"));
    } else {
      visit(absl::StrCat(prefix, name), value);
    }
  }
}

/// The value with lists in place of tensors, also within lists and dictionaries.
TrackerValue listify(const TrackerValue& value);

nlohmann::ordered_json json_value(const TrackerValue& value);
nlohmann::ordered_json json_value(const TrackerDict& dict);
/// The number, or its text if it is not finite. Protocol buffers map doubles to JSON in the same
/// way.
nlohmann::ordered_json json_number(double number);

/// The text with U+FFFD in place of bytes that are not UTF-8.
std::string valid_utf8(const std::string& text);

/// A YAML document, see accelerate/base/json_text.h.
std::string yaml_text(const TrackerDict& values);

/// A PNG file, the format that all vendors take: grey, grey and alpha, RGB or RGBA with 8 bits, by
/// the image's channels; lossless.
/// Errors:  std::invalid_argument for an image without pixels, with other than 1 to 4 channels, or
///          whose pixels are not height x width x channels; std::runtime_error with libpng's
///          reason, for example for a side of more than a million pixels.
std::string encode_png(const TrackerImage& image);

/// Records of RFC 4180: fields that contain a separator, a quote or an end of line are quoted, and
/// quotes within them are doubled.
std::string csv_row(const std::vector<std::string>& fields, char separator = ',',
                    std::string_view end = "\r\n");

/// The bytes of the first record with its end, "\n" or "\r\n"; 0 if it has no end. Line ends within
/// quotes do not count.
size_t csv_row_size(std::string_view text);

/// The record without its end, "\n" or "\r\n".
std::string_view without_csv_end(std::string_view row);

/// The fields of one record, without or with its end. `has_whole_quotes` gets whether quotes are
/// only around whole fields, and doubled within them, as `csv_row` writes them; null: it is not
/// asked.
std::vector<std::string> csv_fields(std::string_view row, char separator = ',',
                                    bool* has_whole_quotes = nullptr);

}  // namespace accelerate::trackers
