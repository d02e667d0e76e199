#include "launch/settings/yaml_text.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <regex>
#include <vector>

#include <yaml-cpp/yaml.h>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

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

// Whether a plain word would come back as something else than this text.
bool needs_quotes(const std::string& text) {
  if (!plain_scalar(text).is_string() || is_one_of(text, {"y", "Y", "n", "N", "=", "<<"})) {
    return true;
  }
  // Dates, numbers of YAML 1.2, and numbers to the base of 60.
  static const std::regex kOtherWords(
      "[0-9]{4}-[0-9][-0-9Tt:. Z+]*|"
      "[-+]?([.][0-9]+|[0-9]+([.][0-9]*)?)([eE][-+]?[0-9]+)?|0o[0-7]+|"
      "[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+([.][0-9_]*)?");
  if (std::regex_match(text, kOtherWords) || text.front() == ' ' || text.back() == ' ') return true;
  if (text.find_first_of("-?:,[]{}#&*!|>'\"%@`") == 0) {
    const bool is_dash_word = absl::string_view("-?:").find(text[0]) != absl::string_view::npos &&
                              text.size() > 1 && text[1] != ' ';
    if (!is_dash_word) return true;
  }
  return text.find(": ") != std::string::npos || text.find(" #") != std::string::npos ||
         text.back() == ':' || text.starts_with("---");
}

std::string quoted(const std::string& text) {
  const bool is_printable =
      std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  if (is_printable) return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "''"}}), "'");
  return Json(text).dump();
}

std::string scalar_text(const Json& value) {
  if (value.is_null()) return "null";
  if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    return needs_quotes(text) || quoted(text)[0] == '"' ? quoted(text) : text;
  }
  if (value.is_number_float() && value.get<double>() == std::floor(value.get<double>()) &&
      std::abs(value.get<double>()) < 1e16) {
    return absl::StrFormat("%.1f", value.get<double>());
  }
  return value.dump();
}

void write(const Json& map, const std::string& indent, std::string* out) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : map.items()) keys.push_back(key);
  std::sort(keys.begin(), keys.end());
  for (const std::string& key : keys) {
    const Json& value = map[key];
    absl::StrAppend(out, indent, scalar_text(key), ":");
    if (value.is_object() && !value.empty()) {
      absl::StrAppend(out, "\n");
      write(value, indent + "  ", out);
    } else if (value.is_array() && !value.empty()) {
      absl::StrAppend(out, "\n");
      for (const Json& item : value) absl::StrAppend(out, indent, "- ", scalar_text(item), "\n");
    } else {
      absl::StrAppend(out, " ", value.is_structured() ? value.dump() : scalar_text(value), "\n");
    }
  }
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
  std::string out;
  write(map, "", &out);
  return out;
}

}  // namespace accelerate::launch::settings
