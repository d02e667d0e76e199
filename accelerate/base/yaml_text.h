/// A JSON object as a YAML document: block style, keys in the order of their bytes, texts in quotes
/// where a reader would take them for something else.
///
///   yaml_text({{"lr", 0.1}, {"sizes", {2, 3}}})  // "lr: 0.1\nsizes:\n- 2\n- 3\n"
///
/// Numbers that are not finite are .nan, .inf and -.inf.
/// Threads: a pure function.
/// Mirrors: PyYAML's `dump`, with the default style.
/// Differs: texts with control characters, and long texts outside of ASCII, stay on one line.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include <nlohmann/json.hpp>

namespace accelerate {

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

/// `object` must be an object. The text ends with a newline.
std::string yaml_text(const nlohmann::ordered_json& object, const YamlStyle& style = {});

}  // namespace accelerate
