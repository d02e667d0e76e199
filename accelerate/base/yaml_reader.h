/// A text of YAML 1.1 as a value; Document (document.h) tells what it means.
///
/// Errors:  DocumentError with the name, the line and the column.
/// Threads: pure functions.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/string_view.h"
#include "accelerate/base/document_options.h"

namespace accelerate::internal {

struct YamlText {
  nlohmann::ordered_json value;
  /// By JSON pointers, from 1.
  std::map<std::string, int> lines;
  std::vector<std::string> notes;
};

YamlText read_yaml(absl::string_view text, const DocumentOptions& options);

/// What a plain word is: null, a truth value, a number, or else the word.
nlohmann::ordered_json yaml_word(const std::string& word);

}  // namespace accelerate::internal
