/// A text of YAML 1.1 as PyYAML's safe loader reads it, with which HF Accelerate reads its files.
///
/// Plain words are truth values, numbers (`0x10`, `010`, `1_000`, `1:30`) or nothing as in
/// YAML 1.1;
/// `<<` merges maps; of a key that stands twice the last one counts, and a note says so.
/// Differs: `.inf`, `.nan` and dates are texts; Python's tags for lists, maps and words, which
/// older
///          releases of HF Accelerate wrote, are read as what they hold.
/// Errors: InvalidArgument, one line with the name, the line and the column.
/// Threads: any.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"

namespace accelerate::launcher::settings {

struct YamlText {
  nlohmann::ordered_json value;
  /// The lines of keys by their path, "fsdp_config.fsdp_version"; from 1.
  std::map<std::string, int> lines;
  std::vector<std::string> notes;
};

/// `name` is what errors call the text. An empty one is null.
absl::StatusOr<YamlText> read_yaml(const std::string& text, const std::string& name);

/// Whether a reader of YAML 1.1 or 1.2 takes a plain word for something else than a text.
bool is_yaml_keyword(const std::string& word);

/// The note on a key that stands twice at `place`, as in "c.yaml:3".
std::string note_on_repeated_key(const std::string& place, const std::string& key);

}  // namespace accelerate::launcher::settings
