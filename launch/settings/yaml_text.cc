#include "launch/settings/yaml_text.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <regex>

#include <yaml-cpp/yaml.h>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "accelerate/base/json_text.h"

namespace accelerate::launch::settings {
namespace {

using Json = nlohmann::ordered_json;

// Configurations are never deeper.
constexpr int kMaxDepth = 8;

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

// Decimal, 0x, 0b, or octal with a 0 in front; `_` may stand between digits.
bool read_int(absl::string_view word, int64_t* number) {
  std::string digits = absl::StrReplaceAll(word, {{"_", ""}});
  if (digits.empty() || word[0] == '_') return false;
  const bool is_negative = digits[0] == '-';
  if (is_negative || digits[0] == '+') digits.erase(0, 1);
  if (digits.empty() || !absl::ascii_isdigit(digits[0])) return false;
  int base = 10;
  size_t skip = 0;
  if (digits.size() > 1 && digits[0] == '0') {
    base = digits[1] == 'x' ? 16 : digits[1] == 'b' ? 2 : 8;
    skip = base == 8 ? 1 : 2;
  }
  const std::string body = digits.substr(skip);
  char* end = nullptr;
  errno = 0;
  if (body.empty() || !absl::ascii_isxdigit(body[0])) return false;
  const uint64_t magnitude = std::strtoull(body.c_str(), &end, base);
  if (*end != 0 || errno != 0 || magnitude > static_cast<uint64_t>(INT64_MAX)) return false;
  *number = is_negative ? -static_cast<int64_t>(magnitude) : static_cast<int64_t>(magnitude);
  return true;
}

// A float of YAML 1.1 has a point; `1e5` is a text there.
bool read_float(absl::string_view word, double* number) {
  const std::string digits = absl::StrReplaceAll(word, {{"_", ""}});
  if (digits.find('.') == std::string::npos) return false;
  const bool only_digits = std::all_of(digits.begin(), digits.end(), [](char c) {
    return absl::ascii_isdigit(c) || c == '.' || c == 'e' || c == 'E' || c == '+' || c == '-';
  });
  return only_digits && std::any_of(digits.begin(), digits.end(), absl::ascii_isdigit) &&
         absl::SimpleAtod(digits, number);
}

Json plain_scalar(const std::string& word) {
  int64_t integer = 0;
  double real = 0;
  if (is_null(word)) return nullptr;
  if (is_true(word)) return true;
  if (is_false(word)) return false;
  if (read_int(word, &integer)) return integer;
  if (read_float(word, &real)) return real;
  return word;
}

class Reader {
 public:
  Reader(absl::string_view name, YamlDocument& document) : name_(name), document_(document) {}

  absl::StatusOr<Json> read(const YAML::Node& node, const std::string& path, int depth) {
    if (depth > kMaxDepth) return error_at(name_, node.Mark(), "too deep");
    if (!node.IsDefined() || node.IsNull()) return Json(nullptr);
    if (node.IsScalar()) {
      return node.Tag() == "!" || node.Tag() == "tag:yaml.org,2002:str"
                 ? Json(node.Scalar())
                 : plain_scalar(node.Scalar());
    }
    if (node.IsSequence()) return read_list(node, path, depth);
    return read_map(node, path, depth);
  }

 private:
  absl::StatusOr<Json> read_list(const YAML::Node& node, const std::string& path, int depth) {
    Json list = Json::array();
    for (const YAML::Node& item : node) {
      absl::StatusOr<Json> value = read(item, path, depth + 1);
      if (!value.ok()) return value.status();
      list.push_back(*std::move(value));
    }
    return list;
  }

  absl::StatusOr<Json> read_map(const YAML::Node& node, const std::string& path, int depth) {
    Json map = Json::object();
    for (const auto& entry : node) {
      if (!entry.first.IsScalar())
        return error_at(name_, entry.first.Mark(), "a key is not a plain word");
      const std::string& key = entry.first.Scalar();
      const std::string key_path = path.empty() ? key : absl::StrCat(path, ".", key);
      if (map.contains(key)) {
        return error_at(name_, entry.first.Mark(), absl::StrCat("key ", key, " occurs twice"));
      }
      absl::StatusOr<Json> value = read(entry.second, key_path, depth + 1);
      if (!value.ok()) return value.status();
      document_.lines[key_path] = entry.first.Mark().line + 1;
      map[key] = *std::move(value);
    }
    return map;
  }

  const std::string name_;
  YamlDocument& document_;
};

// Whether a reader of YAML 1.1 or 1.2 takes a plain word for something else than a text.
bool is_keyword(const std::string& text) {
  // Dates, numbers of YAML 1.2, and numbers to the base of 60.
  static const std::regex kOtherWords(
      "[0-9]{4}-[0-9][-0-9Tt:. Z+]*|"
      "[-+]?([.][0-9]+|[0-9]+([.][0-9]*)?)([eE][-+]?[0-9]+)?|0o[0-7]+|"
      "[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+([.][0-9_]*)?");
  return !plain_scalar(text).is_string() || is_one_of(text, {"y", "Y", "n", "N", "=", "<<"}) ||
         std::regex_match(text, kOtherWords);
}

}  // namespace

absl::StatusOr<YamlDocument> parse_yaml(const std::string& text, absl::string_view name) {
  YamlDocument document;
  try {
    absl::StatusOr<Json> value = Reader(name, document).read(YAML::Load(text), "", 0);
    if (!value.ok()) return value.status();
    document.value = *std::move(value);
  } catch (const YAML::Exception& error) {
    return error_at(name, error.mark, error.msg);
  }
  return document;
}

std::string to_yaml(const nlohmann::ordered_json& map) {
  if (map.empty()) return "";
  return yaml_text(map, {.width = std::string::npos, .unicode = true, .is_keyword = is_keyword});
}

}  // namespace accelerate::launch::settings
