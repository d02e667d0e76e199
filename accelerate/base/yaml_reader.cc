#include "accelerate/base/yaml_reader.h"

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <utility>

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "accelerate/base/json_text.h"

namespace accelerate::internal {
namespace {

using Json = nlohmann::ordered_json;

// Configurations are never deeper.
constexpr int kMaxDepth = 8;
// Each alias repeats what it stands for, so a short text can have more values than fit.
constexpr int kMaxValues = 20'000;
constexpr char kMerge[] = "<<";

bool is_one_of(absl::string_view word, std::initializer_list<const char*> words) {
  return absl::c_linear_search(words, word);
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
// 1:30.5 is 90.5.
std::optional<double> read_float(const std::string& word) {
  static const std::regex kFloat("([-+]?[0-9][0-9_]*[.][0-9_]*|[.][0-9][0-9_]*)([eE][-+][0-9]+)?");
  static const std::regex kSexagesimal("[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+[.][0-9_]*");
  // std::regex recurses once per character.
  constexpr size_t kLongest = 200;
  double number = 0;
  if (word.size() > kLongest) return std::nullopt;
  if (std::regex_match(word, kSexagesimal)) {
    absl::string_view digits = word;
    const double sign = absl::ConsumePrefix(&digits, "-") ? -1 : 1;
    for (const absl::string_view part : absl::StrSplit(digits, ':')) {
      double value = 0;
      if (!absl::SimpleAtod(absl::StrReplaceAll(part, {{"_", ""}}), &value)) return std::nullopt;
      number = number * 60 + value;
    }
    return sign * number;
  }
  if (!std::regex_match(word, kFloat)) return std::nullopt;
  if (!absl::SimpleAtod(absl::StrReplaceAll(word, {{"_", ""}}), &number)) return std::nullopt;
  return number;
}

// The short name of a tag: "int" also of Python's; "" without a tag, "!" of a quoted word.
std::string tag_of(const YAML::Node& node) {
  absl::string_view tag = node.Tag();
  if (tag == "?") return "";
  if (absl::ConsumePrefix(&tag, "tag:yaml.org,2002:")) absl::ConsumePrefix(&tag, "python/");
  return std::string(tag);
}

class YamlReader {
 public:
  YamlReader(const DocumentOptions& options, YamlText& text) : options_(options), text_(text) {}

  [[noreturn]] void fail(const YAML::Mark& mark, absl::string_view problem) const {
    const std::string place =
        mark.is_null() ? "" : absl::StrCat(":", mark.line + 1, ":", mark.column + 1);
    throw DocumentError(absl::StrCat(options_.name, place, ": ", problem));
  }

  Json read(const YAML::Node& node, const std::string& pointer, int depth) {
    if (depth > kMaxDepth) fail(node.Mark(), "too deep");
    if (++values_ > kMaxValues) fail(node.Mark(), "too many values, those of aliases included");
    if (!node.IsDefined() || node.IsNull()) return nullptr;
    const std::string tag = tag_of(node);
    if (node.IsScalar()) return read_scalar(node, tag);
    const bool is_known = node.IsSequence() ? is_one_of(tag, {"", "!", "seq", "tuple", "list"})
                                            : is_one_of(tag, {"", "!", "map", "dict"});
    if (!is_known) fail_by_tag(node);
    return node.IsSequence() ? read_list(node, pointer, depth) : read_map(node, pointer, depth);
  }

 private:
  [[noreturn]] void fail_by_tag(const YAML::Node& node) const {
    fail(node.Mark(), absl::StrCat("the tag ", node.Tag(), " is unknown"));
  }

  Json read_scalar(const YAML::Node& node, const std::string& tag) const {
    const std::string& word = node.Scalar();
    if (options_.words_are_texts || is_one_of(tag, {"!", "str", "unicode"})) return word;
    const Json value = yaml_word(word);
    if (tag.empty()) return value;
    if (!is_one_of(tag, {"bool", "int", "float", "null", "none"})) fail_by_tag(node);
    double number = 0;
    if (tag == "float" && !absl::SimpleAtod(absl::StrReplaceAll(word, {{"_", ""}}), &number)) {
      fail(node.Mark(), absl::StrCat(json_text(word), " is not a float"));
    }
    if (tag == "float") return number;
    const bool is_right = tag == "bool"  ? value.is_boolean()
                          : tag == "int" ? value.is_number_integer()
                                         : value.is_null();
    if (is_right) return value;
    fail(node.Mark(), absl::StrCat(json_text(word), " is not of the type ", tag));
  }

  Json read_list(const YAML::Node& node, const std::string& pointer, int depth) {
    Json list = Json::array();
    for (const YAML::Node& item : node) {
      const std::string item_pointer = absl::StrCat(pointer, "/", list.size());
      note_line(item_pointer, item);
      list.push_back(read(item, item_pointer, depth + 1));
    }
    return list;
  }

  static bool is_merge(const YAML::Node& key) {
    return key.IsScalar() && key.Scalar() == kMerge && tag_of(key).empty();
  }

  // Brings the pairs of the map, or of the maps of a list, of which the first counts.
  void merge(const YAML::Node& node, const std::string& pointer, int depth, Json& map) {
    std::vector<YAML::Node> sources;
    if (!node.IsSequence()) sources.push_back(node);
    for (size_t i = node.IsSequence() ? node.size() : 0; i > 0; --i) sources.push_back(node[i - 1]);
    for (const YAML::Node& source : sources) {
      if (!source.IsMap()) fail(source.Mark(), "<< merges a map or a list of maps");
      const Json pairs = read(source, pointer, depth + 1);
      for (const auto& [key, value] : pairs.items()) map[key] = value;
    }
  }

  Json read_map(const YAML::Node& node, const std::string& pointer, int depth) {
    Json map = Json::object();
    // The map's own keys win over merged ones.
    for (const auto& entry : node) {
      if (is_merge(entry.first)) merge(entry.second, pointer, depth, map);
    }
    std::set<std::string> own;
    for (const auto& entry : node) {
      if (is_merge(entry.first)) continue;
      if (!entry.first.IsScalar()) fail(entry.first.Mark(), "a key is not a plain word");
      const std::string& key = entry.first.Scalar();
      if (!own.insert(key).second) note_repeated(entry.first);
      const std::string key_pointer = member_pointer(pointer, key);
      Json value = read(entry.second, key_pointer, depth + 1);
      note_line(key_pointer, entry.first);
      map[key] = std::move(value);
    }
    return map;
  }

  void note_line(const std::string& pointer, const YAML::Node& node) {
    if (!node.Mark().is_null()) text_.lines[pointer] = node.Mark().line + 1;
  }

  // A map that others merge is read several times.
  void note_repeated(const YAML::Node& key) {
    if (!options_.last_key_counts) {
      fail(key.Mark(), absl::StrCat("it has ", json_text(key.Scalar()), " twice"));
    }
    std::string note = note_on_key(options_.name, key.Mark().line + 1, key.Scalar());
    if (!absl::c_linear_search(text_.notes, note)) text_.notes.push_back(std::move(note));
  }

  const DocumentOptions& options_;
  YamlText& text_;
  int values_ = 0;
};

// Where documents begin. YAML::LoadAll does not end where a document leaves a token behind, as in
// "{a: 1},".
class DocumentStarts final : public YAML::EventHandler {
 public:
  std::vector<YAML::Mark> marks;

  void OnDocumentStart(const YAML::Mark& mark) override { marks.push_back(mark); }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

}  // namespace

YamlText read_yaml(absl::string_view text, const DocumentOptions& options) {
  YamlText result;
  YamlReader reader(options, result);
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    DocumentStarts starts;
    while (starts.marks.size() < 2 && parser.HandleNextDocument(starts)) {
    }
    if (starts.marks.size() > 1) {
      reader.fail(starts.marks[1], "a second document begins; keep one");
    }
    if (!starts.marks.empty()) result.value = reader.read(YAML::Load(std::string(text)), "", 0);
  } catch (const YAML::Exception& error) {
    reader.fail(error.mark, error.msg);
  }
  return result;
}

Json yaml_word(const std::string& word) {
  if (is_null(word)) return nullptr;
  if (is_true(word)) return true;
  if (is_false(word)) return false;
  if (const std::optional<int64_t> number = read_int(word)) return *number;
  if (const std::optional<double> number = read_float(word)) return *number;
  return word;
}

}  // namespace accelerate::internal
