#include "launch/settings/yaml_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <regex>
#include <set>
#include <utility>

#include <yaml-cpp/yaml.h>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace accelerate::launcher::settings {
namespace {

using Json = nlohmann::ordered_json;

// Configurations are never deeper.
constexpr int kMaxDepth = 8;
constexpr char kMerge[] = "<<";

absl::Status error_at(absl::string_view name, const YAML::Mark& mark, absl::string_view message) {
  if (mark.is_null()) return absl::InvalidArgumentError(absl::StrCat(name, ": ", message));
  return absl::InvalidArgumentError(
      absl::StrCat(name, ":", mark.line + 1, ":", mark.column + 1, ": ", message));
}

bool is_one_of(absl::string_view word, std::initializer_list<const char*> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool is_null(absl::string_view word) { return is_one_of(word, {"", "~", "null", "Null", "NULL"}); }

bool is_true(absl::string_view word) {
  return is_one_of(word, {"yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"});
}

bool is_false(absl::string_view word) {
  return is_one_of(word, {"no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"});
}

// All of `digits` to the base.
std::optional<uint64_t> read_digits(const std::string& digits, int base) {
  if (digits.empty() || !absl::ascii_isxdigit(digits[0])) return std::nullopt;
  char* end = nullptr;
  errno = 0;
  const uint64_t number = std::strtoull(digits.c_str(), &end, base);
  if (*end != 0 || errno != 0 || number > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
  return number;
}

// 1:30 is 90: numbers to the base of 60.
std::optional<uint64_t> read_sexagesimal(absl::string_view word) {
  uint64_t sum = 0;
  bool is_first = true;
  for (const absl::string_view part : absl::StrSplit(word, ':')) {
    const std::string digits =
        is_first ? absl::StrReplaceAll(part, {{"_", ""}}) : std::string(part);
    const std::optional<uint64_t> number = read_digits(digits, 10);
    if (!number || (!is_first && (digits.size() > 2 || *number > 59))) return std::nullopt;
    if (sum > (static_cast<uint64_t>(INT64_MAX) - *number) / 60) return std::nullopt;
    sum = sum * 60 + *number;
    is_first = false;
  }
  return sum;
}

// Decimal, 0x, 0b, octal with a 0 in front, or to the base of 60; `_` may stand between digits.
std::optional<int64_t> read_int(absl::string_view word) {
  const bool is_negative = absl::ConsumePrefix(&word, "-");
  if (!is_negative) absl::ConsumePrefix(&word, "+");
  if (word.empty() || !absl::ascii_isdigit(word[0])) return std::nullopt;
  std::optional<uint64_t> magnitude;
  if (word[0] == '0' && word.size() > 1) {
    const int base = absl::ConsumePrefix(&word, "0x")   ? 16
                     : absl::ConsumePrefix(&word, "0b") ? 2
                                                        : 8;
    magnitude = read_digits(absl::StrReplaceAll(word, {{"_", ""}}), base);
  } else {
    magnitude = read_sexagesimal(word);
  }
  if (!magnitude) return std::nullopt;
  return is_negative ? -static_cast<int64_t>(*magnitude) : static_cast<int64_t>(*magnitude);
}

// A float of YAML 1.1 has a point, and a sign in its exponent: `1e5` and `1.0e5` are texts there.
std::optional<double> read_float(const std::string& word) {
  static const std::regex kFloat("([-+]?[0-9][0-9_]*[.][0-9_]*|[.][0-9][0-9_]*)([eE][-+][0-9]+)?");
  double number = 0;
  if (!std::regex_match(word, kFloat)) return std::nullopt;
  if (!absl::SimpleAtod(absl::StrReplaceAll(word, {{"_", ""}}), &number)) return std::nullopt;
  return number;
}

Json plain_scalar(const std::string& word) {
  if (is_null(word)) return nullptr;
  if (is_true(word)) return true;
  if (is_false(word)) return false;
  if (const std::optional<int64_t> number = read_int(word)) return *number;
  if (const std::optional<double> number = read_float(word)) return *number;
  return word;
}

// The short name of a tag: "int" also of Python's; "" without a tag, "!" of a quoted word.
std::string tag_of(const YAML::Node& node) {
  absl::string_view tag = node.Tag();
  if (tag == "?") return "";
  if (absl::ConsumePrefix(&tag, "tag:yaml.org,2002:")) absl::ConsumePrefix(&tag, "python/");
  return std::string(tag);
}

class Reader {
 public:
  Reader(const std::string& name, YamlText& text) : name_(name), text_(text) {}

  absl::StatusOr<Json> read(const YAML::Node& node, const std::string& path, int depth) {
    if (depth > kMaxDepth) return error_at(name_, node.Mark(), "too deep");
    if (!node.IsDefined() || node.IsNull()) return Json(nullptr);
    const std::string tag = tag_of(node);
    if (node.IsScalar()) return read_scalar(node, tag);
    const bool is_known = node.IsSequence() ? is_one_of(tag, {"", "!", "seq", "tuple", "list"})
                                            : is_one_of(tag, {"", "!", "map", "dict"});
    if (!is_known) return unknown_tag(node);
    return node.IsSequence() ? read_list(node, path, depth) : read_map(node, path, depth);
  }

 private:
  absl::Status unknown_tag(const YAML::Node& node) const {
    return error_at(name_, node.Mark(), absl::StrCat("the tag ", node.Tag(), " is unknown"));
  }

  absl::StatusOr<Json> read_scalar(const YAML::Node& node, const std::string& tag) const {
    const std::string& word = node.Scalar();
    if (is_one_of(tag, {"!", "str", "unicode"})) return Json(word);
    const Json value = plain_scalar(word);
    if (tag.empty()) return value;
    if (!is_one_of(tag, {"bool", "int", "float", "null", "none"})) return unknown_tag(node);
    double number = 0;
    if (tag == "float" && !absl::SimpleAtod(absl::StrReplaceAll(word, {{"_", ""}}), &number)) {
      return error_at(name_, node.Mark(), absl::StrCat("\"", word, "\" is not a float"));
    }
    if (tag == "float") return Json(number);
    const bool is_right = tag == "bool"  ? value.is_boolean()
                          : tag == "int" ? value.is_number_integer()
                                         : value.is_null();
    if (is_right) return value;
    return error_at(name_, node.Mark(), absl::StrCat("\"", word, "\" is not of the type ", tag));
  }

  absl::StatusOr<Json> read_list(const YAML::Node& node, const std::string& path, int depth) {
    Json list = Json::array();
    for (const YAML::Node& item : node) {
      absl::StatusOr<Json> value = read(item, path, depth + 1);
      if (!value.ok()) return value.status();
      list.push_back(*std::move(value));
    }
    return list;
  }

  static bool is_merge(const YAML::Node& key) {
    return key.IsScalar() && key.Scalar() == kMerge && tag_of(key).empty();
  }

  // Brings the pairs of the map, or of the maps of a list, of which the first counts.
  absl::Status merge(const YAML::Node& node, const std::string& path, int depth, Json& map) {
    std::vector<YAML::Node> sources;
    if (!node.IsSequence()) sources.push_back(node);
    for (size_t i = node.IsSequence() ? node.size() : 0; i > 0; --i) sources.push_back(node[i - 1]);
    for (const YAML::Node& source : sources) {
      if (!source.IsMap()) {
        return error_at(name_, source.Mark(), "<< merges a map or a list of maps");
      }
      const absl::StatusOr<Json> pairs = read(source, path, depth + 1);
      if (!pairs.ok()) return pairs.status();
      for (const auto& [key, value] : pairs->items()) map[key] = value;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Json> read_map(const YAML::Node& node, const std::string& path, int depth) {
    Json map = Json::object();
    // The map's own keys win over merged ones.
    for (const auto& entry : node) {
      if (!is_merge(entry.first)) continue;
      if (absl::Status ok = merge(entry.second, path, depth, map); !ok.ok()) return ok;
    }
    std::set<std::string> own;
    for (const auto& entry : node) {
      if (is_merge(entry.first)) continue;
      if (!entry.first.IsScalar())
        return error_at(name_, entry.first.Mark(), "a key is not a plain word");
      const std::string& key = entry.first.Scalar();
      const std::string key_path = path.empty() ? key : absl::StrCat(path, ".", key);
      absl::StatusOr<Json> value = read(entry.second, key_path, depth + 1);
      if (!value.ok()) return value.status();
      const int line = entry.first.Mark().line + 1;
      if (!own.insert(key).second) note_repeated(key, line);
      text_.lines[key_path] = line;
      map[key] = *std::move(value);
    }
    return map;
  }

  // A map that others merge is read several times.
  void note_repeated(const std::string& key, int line) {
    const std::string note = note_on_repeated_key(absl::StrCat(name_, ":", line), key);
    if (!absl::c_linear_search(text_.notes, note)) text_.notes.push_back(note);
  }

  const std::string& name_;
  YamlText& text_;
};

}  // namespace

std::string note_on_repeated_key(const std::string& place, const std::string& key) {
  return absl::StrCat(place, ": the key ", key, " occurs twice; the last one counts");
}

bool is_yaml_keyword(const std::string& word) {
  // Dates, numbers of YAML 1.2, and numbers to the base of 60.
  static const std::regex kOtherWords(
      "[0-9]{4}-[0-9][-0-9Tt:. Z+]*|"
      "[-+]?([.][0-9]+|[0-9]+([.][0-9]*)?)([eE][-+]?[0-9]+)?|0o[0-7]+|"
      "[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+([.][0-9_]*)?");
  return !plain_scalar(word).is_string() || is_one_of(word, {"y", "Y", "n", "N", "=", kMerge}) ||
         std::regex_match(word, kOtherWords);
}

absl::StatusOr<YamlText> read_yaml(const std::string& text, const std::string& name) {
  YamlText result;
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(text);
    if (documents.size() > 1) {
      return error_at(name, documents[1].Mark(), "a second document begins; keep one");
    }
    if (documents.empty()) return result;
    absl::StatusOr<Json> value = Reader(name, result).read(documents[0], "", 0);
    if (!value.ok()) return value.status();
    result.value = *std::move(value);
  } catch (const YAML::Exception& error) {
    return error_at(name, error.mark, error.msg);
  }
  return result;
}

}  // namespace accelerate::launcher::settings
