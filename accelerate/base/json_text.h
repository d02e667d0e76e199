/// JSON values as text, and JSON objects as YAML documents; document.h reads both.
///
/// Functions that walk through a value are recursive, so a value deeper than kMaxJsonDepth could
/// overflow a thread's stack: it is neither read nor written.
///
/// Threads: pure functions.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include <nlohmann/json.hpp>

#include "absl/strings/string_view.h"

namespace accelerate {

/// A JSON value, or a string, number or container that becomes one, as text: on one line, or on
/// several with `indent` spaces for each level. Bytes that are not UTF-8 become U+FFFD, because
/// names and messages of users may hold any bytes. Numbers that are not finite become null.
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);

/// Whether YAML 1.1 reads a plain word as a number, a truth value, a date or null.
bool is_yaml_keyword(const std::string& word);

struct YamlStyle {
  /// A text is broken at the first single space behind this column.
  size_t width = 80;
  /// Whether characters outside of ASCII are written as they are; otherwise they are escaped.
  bool unicode = false;
  /// Whether a word needs quotes to be read as a text.
  std::function<bool(const std::string&)> is_keyword = is_yaml_keyword;
};

/// `object`, which must be one, as a YAML document: block style, keys in the order of their bytes,
/// texts in quotes where a reader would take them for something else. It ends with a newline.
///
///   yaml_text({{"lr", 0.1}, {"sizes", {2, 3}}})  // "lr: 0.1\nsizes:\n- 2\n- 3\n"
///
/// Numbers that are not finite are .nan, .inf and -.inf.
/// Mirrors: PyYAML's `dump`, with the default style.
/// Differs: texts with control characters, and long texts outside of ASCII, stay on one line.
std::string yaml_text(const nlohmann::ordered_json& object, const YamlStyle& style = {});

namespace internal {

/// Levels of lists and objects; more than this library writes.
inline constexpr size_t kMaxJsonDepth = 200;

bool is_value_too_deep(const nlohmann::ordered_json& value);

/// nlohmann's parse, accept and dump, compiled here and not in each source that calls them: parse
/// takes 1.5 s there. Errors: nlohmann::json::exception for strings that are not UTF-8, and for a
/// text that is not JSON; where exceptions are not allowed, its value is_discarded().
bool is_json(absl::string_view text);
nlohmann::json parse_json(absl::string_view text, bool allow_exceptions = true);
nlohmann::ordered_json parse_ordered_json(absl::string_view text, bool allow_exceptions = true);
std::string exact_json_text(const nlohmann::json& value, int indent = -1, bool ascii_only = false);
std::string exact_json_text(const nlohmann::ordered_json& value, int indent = -1,
                            bool ascii_only = false);

/// Whether the name is a plain file name on any system, without a folder in it.
bool is_plain_file_name(const std::string& file);

}  // namespace internal
}  // namespace accelerate
