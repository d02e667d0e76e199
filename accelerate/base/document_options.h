/// What the readers of documents (document.h) are told, and what they throw.
///
/// Threads: values; pure functions.
#pragma once

#include <stdexcept>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace accelerate {

/// Thrown for a text that is not a document, and for a value that is not what it should be. The
/// message is one line, whatever characters of the document it quotes.
class DocumentError : public std::invalid_argument {
 public:
  explicit DocumentError(absl::string_view message)
      : std::invalid_argument(
            absl::StrReplaceAll(message, {{absl::string_view("\0", 1), "\\0"}, {"\n", "\\n"}})) {}
};

struct DocumentOptions {
  /// What errors and notes call the document, as a file's path; empty: they begin with the problem.
  std::string name = {};
  /// The last of two equal keys counts, and a note says so, as in Python; else they are an error.
  bool last_key_counts = false;
  /// JSON: the words Infinity and -Infinity are numbers, as Python writes them.
  bool python_numbers = false;
  /// YAML: plain words are texts, as they stand.
  bool words_are_texts = false;
};

namespace internal {

/// The JSON pointer of a member of the value at `pointer`.
inline std::string member_pointer(absl::string_view pointer, absl::string_view key) {
  return absl::StrCat(pointer, "/", absl::StrReplaceAll(key, {{"~", "~0"}, {"/", "~1"}}));
}

/// The note on a key that stands twice.
inline std::string note_on_key(absl::string_view name, int line, absl::string_view key) {
  return absl::StrCat(name, ":", line, ": the key ", key, " occurs twice; the last one counts");
}

}  // namespace internal
}  // namespace accelerate
