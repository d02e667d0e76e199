/// YAML as configuration files have it, to JSON values and back.
///
/// Plain words are read as YAML 1.1 reads them (`no` is false, `0x10` is 16), as HF
/// Accelerate does, and written so that either version of YAML reads them back.
/// Errors:  InvalidArgument, `NAME:LINE:COLUMN: what is wrong`.
/// Threads: any.
#pragma once

#include <map>
#include <string>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace accelerate::launch::settings {

struct YamlDocument {
  /// Null for an empty text. Maps keep their order.
  nlohmann::ordered_json value;
  /// Lines of the keys of maps, from 1: "a", and "a.b" for one within another.
  std::map<std::string, int> lines;
};

/// Reads one document; `name` is what errors call it. Maps must not have a key twice.
absl::StatusOr<YamlDocument> parse_yaml(const std::string& text, absl::string_view name);

/// Block style, keys sorted, a line's end last. Maps may hold maps, lists of scalars and scalars.
std::string to_yaml(const nlohmann::ordered_json& map);

}  // namespace accelerate::launch::settings
