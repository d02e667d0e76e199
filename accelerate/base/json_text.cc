#include "accelerate/base/json_text.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <regex>
#include <string_view>
#include <utility>

#include "absl/base/no_destructor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "accelerate/base/number_text.h"

namespace accelerate {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

bool has_indicators(std::string_view text) {
  const auto is_space_at = [&](size_t i) { return i >= text.size() || text[i] == ' '; };
  if (text.starts_with("---")) return true;
  if (std::string_view("#,[]{}&*!|>'\"%@`").find(text[0]) != text.npos) return true;
  if (std::string_view("?:-").find(text[0]) != text.npos && is_space_at(1)) return true;
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == ':' && is_space_at(i + 1)) return true;
    if (text[i] == '#' && text[i - 1] == ' ') return true;
  }
  return false;
}

// The UTF-8 code point at `*next`, which moves behind it. A byte that is not UTF-8 counts as a code
// point of its own.
char32_t take_code_point(std::string_view text, size_t* next) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte((*next)++);
  const size_t more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : first >= 0xC0 ? 1 : 0;
  if (first < 0x80 || more == 0 || first > 0xF4 || text.size() - *next < more) return first;
  char32_t code = first & (0x3F >> more);
  for (size_t i = 0; i < more; ++i) {
    if ((byte(*next + i) & 0xC0) != 0x80) return first;
    code = (code << 6) | (byte(*next + i) & 0x3F);
  }
  *next += more;
  return code;
}

// The characters that YAML escapes by a name, and the names.
constexpr std::pair<char32_t, char> kEscapes[] = {
    {'"', '"'},  {'\\', '\\'}, {'\0', '0'}, {'\a', 'a'},   {'\b', 'b'},
    {'\t', 't'}, {'\n', 'n'},  {'\v', 'v'}, {'\f', 'f'},   {'\r', 'r'},
    {0x1B, 'e'}, {0x85, 'N'},  {0xA0, '_'}, {0x2028, 'L'}, {0x2029, 'P'}};

std::string double_quoted(std::string_view text) {
  std::string quoted = "\"";
  for (size_t next = 0; next < text.size();) {
    const char32_t code = take_code_point(text, &next);
    const auto escape = std::ranges::find(kEscapes, code, &std::pair<char32_t, char>::first);
    if (escape != std::end(kEscapes)) {
      quoted += {'\\', escape->second};
    } else if (code >= ' ' && code < 0x7F) {
      quoted += static_cast<char>(code);
    } else {
      absl::StrAppend(&quoted, code < 0x100     ? absl::StrFormat("\\x%02X", code)
                               : code < 0x10000 ? absl::StrFormat("\\u%04X", code)
                                                : absl::StrFormat("\\U%08X", code));
    }
  }
  return quoted + "\"";
}

class Writer {
 public:
  explicit Writer(const YamlStyle& style) : style_(style) {}

  std::string take() && { return std::move(out_); }

  // Writes the first key on the present line and each of the others on a line of its own.
  void write_object(const ordered_json& object, size_t indent) {
    std::map<std::string_view, const ordered_json*> sorted;
    for (const auto& [name, value] : object.items()) sorted[name] = &value;
    bool first = true;
    for (const auto& [name, value] : sorted) {
      if (!first) begin_line(indent);
      first = false;
      write_text(name, indent, /*may_break=*/false);
      out_ += ':';
      write_below(*value, indent);
    }
  }

 private:
  size_t column() const {
    const size_t end = out_.rfind('\n');
    return out_.size() - (end == out_.npos ? 0 : end + 1);
  }

  void begin_line(size_t indent) { out_.append(1, '\n').append(indent, ' '); }

  static bool is_block(const ordered_json& value) {
    return value.is_structured() && !value.empty();
  }

  // The value of a key. PyYAML does not indent a list further than its key.
  void write_below(const ordered_json& value, size_t indent) {
    if (!is_block(value)) {
      out_ += ' ';
      write_scalar(value, indent);
    } else if (value.is_object()) {
      begin_line(indent + 2);
      write_object(value, indent + 2);
    } else {
      begin_line(indent);
      write_list(value, indent);
    }
  }

  void write_list(const ordered_json& list, size_t indent) {
    for (size_t i = 0; i < list.size(); ++i) {
      if (i > 0) begin_line(indent);
      out_ += "- ";
      if (!is_block(list[i])) {
        write_scalar(list[i], indent);
      } else if (list[i].is_object()) {
        write_object(list[i], indent + 2);
      } else {
        write_list(list[i], indent + 2);
      }
    }
  }

  // A scalar, or an empty object or list.
  void write_scalar(const ordered_json& value, size_t indent) {
    if (value.is_string()) {
      write_text(value.get_ref<const std::string&>(), indent, /*may_break=*/true);
    } else {
      out_ += value.is_number_float() ? real_text(value.get<double>()) : value.dump();
    }
  }

  static std::string real_text(double number) {
    if (std::isnan(number)) return ".nan";
    if (std::isinf(number)) return number > 0 ? ".inf" : "-.inf";
    std::string text = float_text(number);
    // YAML 1.1 reads a number without a point as a text.
    const size_t exponent = text.find('e');
    if (exponent != text.npos && text.find('.') == text.npos) text.insert(exponent, ".0");
    return text;
  }

  bool is_printable(std::string_view text) const {
    return std::all_of(text.begin(), text.end(), [&](char c) {
      return c != 0x7F && (c >= ' ' || (style_.unicode && (c & 0x80) != 0));
    });
  }

  void write_text(std::string_view text, size_t indent, bool may_break) {
    if (!is_printable(text)) {
      out_ += style_.unicode ? json_text(text) : double_quoted(text);
    } else if (text.empty() || text.front() == ' ' || text.back() == ' ' || has_indicators(text) ||
               style_.is_keyword(std::string(text))) {
      out_ += '\'';
      write_words(absl::StrReplaceAll(std::string(text), {{"'", "''"}}), indent, may_break);
      out_ += '\'';
    } else {
      write_words(text, indent, may_break);
    }
  }

  void write_words(std::string_view text, size_t indent, bool may_break) {
    for (size_t i = 0; i < text.size(); ++i) {
      const bool single_space = text[i] == ' ' && i > 0 && i + 1 < text.size() &&
                                text[i - 1] != ' ' && text[i + 1] != ' ';
      if (single_space && may_break && column() > style_.width) {
        begin_line(indent + 2);
      } else {
        out_ += text[i];
      }
    }
  }

  const YamlStyle& style_;
  std::string out_;
};

}  // namespace

std::string json_text(const ordered_json& value, int indent) {
  return value.dump(indent, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace);
}

bool is_yaml_keyword(const std::string& word) {
  static const absl::NoDestructor<std::regex> kWords(
      "~|null|Null|NULL|=|<<|"
      "yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF|"
      "[-+]?0b[01_]+|[-+]?0[0-7_]+|[-+]?0x[0-9a-fA-F_]+|[-+]?(0|[1-9][0-9_]*)|"
      "[-+]?[1-9][0-9_]*(:[0-5]?[0-9])+|"
      "[-+]?[0-9][0-9_]*[.][0-9_]*([eE][-+][0-9]+)?|[.][0-9][0-9_]*([eE][-+][0-9]+)?|"
      "[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+[.][0-9_]*|[-+]?[.](inf|Inf|INF)|[.](nan|NaN|NAN)|"
      "[0-9]{4}-[0-9]{2}-[0-9]{2}|"
      "[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt]|[ \t]+)[0-9]{1,2}:[0-9]{2}:[0-9]{2}([.][0-9]*)?"
      "([ \t]*(Z|[-+][0-9]{1,2}(:?[0-9]{2})?))?");
  // All of these are short, and std::regex recurses once per character.
  return word.starts_with("...") || (word.size() < 64 && std::regex_match(word, *kWords));
}

std::string yaml_text(const ordered_json& object, const YamlStyle& style) {
  if (object.empty()) return "{}\n";
  Writer writer(style);
  writer.write_object(object, 0);
  return std::move(writer).take() + "\n";
}

}  // namespace accelerate

namespace accelerate::internal {
namespace {

bool is_deeper(const nlohmann::ordered_json& value, size_t limit) {
  if (!value.is_structured()) return false;
  if (limit == 0) return true;
  return std::ranges::any_of(value,
                             [limit](const auto& item) { return is_deeper(item, limit - 1); });
}

}  // namespace

bool is_value_too_deep(const nlohmann::ordered_json& value) {
  return is_deeper(value, kMaxJsonDepth);
}

bool is_json(absl::string_view text) { return json::accept(text.begin(), text.end()); }

json parse_json(absl::string_view text, bool allow_exceptions) {
  return json::parse(text.begin(), text.end(), nullptr, allow_exceptions);
}

ordered_json parse_ordered_json(absl::string_view text, bool allow_exceptions) {
  return ordered_json::parse(text.begin(), text.end(), nullptr, allow_exceptions);
}

std::string exact_json_text(const json& value, int indent, bool ascii_only) {
  return value.dump(indent, ' ', ascii_only);
}

std::string exact_json_text(const ordered_json& value, int indent, bool ascii_only) {
  return value.dump(indent, ' ', ascii_only);
}

bool is_plain_file_name(const std::string& file) {
  return !file.empty() && file != "." && file != ".." &&
         file.find_first_of(std::string("/\\\0", 3)) == std::string::npos;
}

}  // namespace accelerate::internal
