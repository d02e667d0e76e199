/// Documents of JSON and YAML from files that are not trusted: one reader for both, and values with
/// types out of them whose errors say where they stand.
///
///     const Document document = Document::json(text, {.name = "sizes.json"});
///     document.root().check_keys({"sizes"});
///     for (const DocumentNode& size : document.root().at("sizes").items()) {
///       sizes.push_back(size.integer("a size", 0));
///     }
///     // sizes.json: expected a size at "/sizes/1" (line 3), found -2
///
/// JSON is strict: numbers that a double cannot hold and bytes that are not UTF-8 are errors. YAML
/// is YAML 1.1 as PyYAML's safe loader reads it: plain words are truth values, numbers (`0x10`,
/// `010`, `1_000`, `1:30`) or null; `&` names a value that `*` repeats, `<<` merges maps. Differs:
/// `.inf`, `.nan` and dates are texts; Python's tags for lists, maps, tuples and words are read as
/// what they hold.
///
/// Members of objects keep their order. JSON is nested in at most kMaxJsonDepth levels, YAML in 8
/// with at most 20,000 values, repeated ones included; so a walk through a document may recurse.
/// Errors:  DocumentError, one line, which begins with the document's name; as_status makes a
///          status of it. Places are JSON pointers, with the line if the text has several.
/// Threads: values; pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "accelerate/base/document_options.h"

namespace accelerate {

class DocumentNode;

class Document {
 public:
  using Json = nlohmann::ordered_json;

  /// The text must outlive the document, which finds lines in it. An empty text of YAML is null.
  static Document json(absl::string_view text, DocumentOptions options = {});
  static Document yaml(absl::string_view text, DocumentOptions options = {});

  const Json& value() const& { return value_; }
  Json value() && { return std::move(value_); }
  /// The value with what errors need to know. The document must outlive it.
  DocumentNode root() const;

  /// What the reader of the document should know, a line each: keys that stand twice.
  const std::vector<std::string>& notes() const { return notes_; }

  /// The lines of all values but the root by their JSON pointers, from 1: of a member the line of
  /// its key.
  std::map<std::string, int> lines() const;

 private:
  friend class DocumentNode;

  // A problem of the value at the pointer, with the document's name and the place.
  [[noreturn]] void fail(absl::string_view problem, const std::string& pointer,
                         absl::string_view found = "") const;
  // The line of a value, or of the last one on the way to it; 0: none, or the text has one line.
  int line_of(const std::string& pointer) const;

  DocumentOptions options_;
  Json value_;
  std::vector<std::string> notes_;
  absl::string_view text_;
  // JSON is read again when an error asks for lines.
  bool is_yaml_ = false;
  std::map<std::string, int> yaml_lines_;
};

/// A value in a document. The getters return the value if it is as it should be, and else throw
/// `expected EXPECTED at PLACE, found VALUE`.
class DocumentNode {
 public:
  const Document::Json& value() const { return *value_; }
  const std::string& pointer() const { return pointer_; }
  /// Its key, if it is a member of an object.
  const std::string& key() const { return key_; }

  bool boolean(absl::string_view expected = "true or false") const;
  int64_t integer(absl::string_view expected = "a 64-bit integer",
                  int64_t least = std::numeric_limits<int64_t>::min(),
                  int64_t most = std::numeric_limits<int64_t>::max()) const;
  std::vector<int64_t> integers(absl::string_view expected = "a list of 64-bit integers") const;
  double number(absl::string_view expected = "a number",
                double least = std::numeric_limits<double>::lowest(),
                double most = std::numeric_limits<double>::max()) const;
  const std::string& text(absl::string_view expected = "a text") const;
  /// The index of the text among the names; else `expected EXPECTED (did you mean NAME?)`.
  size_t choice(absl::string_view expected, absl::Span<const std::string> names) const;

  /// The values of a list.
  std::vector<DocumentNode> items(absl::string_view expected = "a list") const;
  /// The members of an object, in their order.
  std::vector<DocumentNode> members(absl::string_view expected = "an object") const;
  /// A member of an object; none if it is missing, or if the value is not an object.
  std::optional<DocumentNode> find(absl::string_view key) const;
  bool has(absl::string_view key) const { return find(key).has_value(); }
  /// A member that must be there, of an object.
  DocumentNode at(absl::string_view key, absl::string_view expected = "a value") const;

  /// An error unless the value is an object without other keys.
  void check_keys(absl::Span<const std::string> known) const;

  /// `expected EXPECTED at PLACE, found VALUE`.
  [[noreturn]] void fail(absl::string_view expected) const;
  /// `expected EXPECTED at PLACE` of the member, which may be missing.
  [[noreturn]] void fail_at(absl::string_view key, absl::string_view expected) const;
  /// `PROBLEM at PLACE`.
  [[noreturn]] void refuse(absl::string_view problem) const;

 private:
  friend class Document;

  DocumentNode(const Document& document, const Document::Json& value, std::string pointer,
               std::string key)
      : document_(&document), value_(&value), pointer_(std::move(pointer)), key_(std::move(key)) {}

  DocumentNode member(const std::string& key, const Document::Json& value) const;

  const Document* document_;
  const Document::Json* value_;
  std::string pointer_;
  std::string key_;
};

/// The value of a text of JSON alone. Errors: DataLoss with the DocumentError's text.
absl::StatusOr<nlohmann::ordered_json> json_value(absl::string_view text,
                                                  DocumentOptions options = {});

/// The beginning of a value's text, for messages.
std::string excerpt_of(const nlohmann::ordered_json& value);

}  // namespace accelerate
