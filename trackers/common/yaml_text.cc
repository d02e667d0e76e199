#include "trackers/common/yaml_text.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <regex>
#include <string_view>

#include "absl/base/no_destructor.h"
#include "absl/functional/overload.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "accelerate/base/number_text.h"
#include "trackers/common/listify.h"

namespace accelerate::trackers {
namespace {

// A line is broken at the first single space behind this column.
constexpr size_t kWidth = 80;

// Plain words that YAML 1.1 reads as something else than a text.
bool is_no_text(const std::string& word) {
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
  // Nothing of this is long, and regular expressions recurse.
  return word.size() < 64 && std::regex_match(word, *kWords);
}

bool has_indicators(std::string_view text) {
  const auto is_space_at = [&](size_t i) { return i >= text.size() || text[i] == ' '; };
  if (text.starts_with("---") || text.starts_with("...")) return true;
  if (std::string_view("#,[]{}&*!|>'\"%@`").find(text[0]) != text.npos) return true;
  if (std::string_view("?:-").find(text[0]) != text.npos && is_space_at(1)) return true;
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == ':' && is_space_at(i + 1)) return true;
    if (text[i] == '#' && text[i - 1] == ' ') return true;
  }
  return false;
}

// A code point of the UTF-8 that begins at `*next`, which moves on; a byte that begins none is one
// of its own.
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

std::string double_quoted(std::string_view text) {
  std::string quoted = "\"";
  for (size_t next = 0; next < text.size();) {
    const char32_t code = take_code_point(text, &next);
    switch (code) {
      case '"': quoted += "\\\""; break;
      case '\\': quoted += "\\\\"; break;
      case '\0': quoted += "\\0"; break;
      case '\a': quoted += "\\a"; break;
      case '\b': quoted += "\\b"; break;
      case '\t': quoted += "\\t"; break;
      case '\n': quoted += "\\n"; break;
      case '\v': quoted += "\\v"; break;
      case '\f': quoted += "\\f"; break;
      case '\r': quoted += "\\r"; break;
      case 0x1B: quoted += "\\e"; break;
      case 0x85: quoted += "\\N"; break;
      case 0xA0: quoted += "\\_"; break;
      case 0x2028: quoted += "\\L"; break;
      case 0x2029: quoted += "\\P"; break;
      default:
        if (code >= ' ' && code < 0x7F) {
          quoted += static_cast<char>(code);
        } else {
          absl::StrAppend(&quoted, code < 0x100     ? absl::StrFormat("\\x%02X", code)
                                   : code < 0x10000 ? absl::StrFormat("\\u%04X", code)
                                                    : absl::StrFormat("\\U%08X", code));
        }
    }
  }
  return quoted + "\"";
}

class Writer {
 public:
  std::string take() && { return std::move(out_); }

  // `indent`: of the keys. The first one is written where the line is.
  void write_dict(const TrackerDict& dict, size_t indent) {
    std::map<std::string_view, const TrackerValue*> sorted;
    for (const auto& [name, value] : dict) sorted[name] = &value;
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

  static bool is_block(const TrackerValue& value) {
    const auto* dict = value.get_if<TrackerDict>();
    const auto* list = value.get_if<TrackerList>();
    return (dict != nullptr && !dict->empty()) || (list != nullptr && !list->empty());
  }

  // The value of a key: lists are no further in than the key.
  void write_below(const TrackerValue& value, size_t indent) {
    if (!is_block(value)) {
      out_ += ' ';
      write_scalar(value, indent);
    } else if (const auto* dict = value.get_if<TrackerDict>()) {
      begin_line(indent + 2);
      write_dict(*dict, indent + 2);
    } else {
      begin_line(indent);
      write_list(*value.get_if<TrackerList>(), indent);
    }
  }

  void write_list(const TrackerList& list, size_t indent) {
    for (size_t i = 0; i < list.size(); ++i) {
      if (i > 0) begin_line(indent);
      out_ += "- ";
      write_item(list[i], indent);
    }
  }

  void write_item(const TrackerValue& item, size_t indent) {
    if (!is_block(item)) {
      write_scalar(item, indent);
    } else if (const auto* dict = item.get_if<TrackerDict>()) {
      write_dict(*dict, indent + 2);
    } else {
      write_list(*item.get_if<TrackerList>(), indent + 2);
    }
  }

  // What is no block.
  void write_scalar(const TrackerValue& value, size_t indent) {
    std::visit(absl::Overload([&](std::monostate) { out_ += "null"; },
                              [&](bool truth) { out_ += truth ? "true" : "false"; },
                              [&](int64_t number) { absl::StrAppend(&out_, number); },
                              [&](double number) { out_ += number_text(number); },
                              [&](const std::string& text) { write_text(text, indent, true); },
                              [&](const TensorValue&) { /* is a list by now */ },
                              [&](const TrackerList&) { out_ += "[]"; },
                              [&](const TrackerDict&) { out_ += "{}"; }),
               value.variant());
  }

  static std::string number_text(double number) {
    if (std::isnan(number)) return ".nan";
    if (std::isinf(number)) return number > 0 ? ".inf" : "-.inf";
    std::string text = float_text(number);
    // YAML 1.1 has no floats without a point.
    const size_t exponent = text.find('e');
    if (exponent != text.npos && text.find('.') == text.npos) text.insert(exponent, ".0");
    return text;
  }

  void write_text(std::string_view text, size_t indent, bool may_break) {
    const bool plain_ascii =
        std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c < 0x7F; });
    if (!plain_ascii) {
      out_ += double_quoted(text);
    } else if (text.empty() || text.front() == ' ' || text.back() == ' ' || has_indicators(text) ||
               is_no_text(std::string(text))) {
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
      if (single_space && may_break && column() > kWidth) {
        begin_line(indent + 2);
      } else {
        out_ += text[i];
      }
    }
  }

  std::string out_;
};

}  // namespace

std::string yaml_text(const TrackerDict& values) {
  if (values.empty()) return "{}\n";
  Writer writer;
  writer.write_dict(listify(values), 0);
  return std::move(writer).take() + "\n";
}

}  // namespace accelerate::trackers
