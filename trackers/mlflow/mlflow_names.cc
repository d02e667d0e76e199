#include "trackers/mlflow/mlflow_store.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace accelerate::trackers {
namespace {

struct Range {
  char32_t first;
  char32_t last;
};
// Letters of many scripts, all within Python's \w, which MLflow requires. MLflow refuses a whole
// request for one name with another character.
constexpr Range kLetters[] = {
    {0xc0, 0xd6},     {0xd8, 0xf6},     {0xf8, 0x2c1},     // Latin
    {0x388, 0x38a},   {0x38e, 0x3a1},   {0x3a3, 0x3f5},    // Greek
    {0x3f7, 0x481},   {0x48a, 0x52f},                      // Cyrillic
    {0x531, 0x556},   {0x560, 0x588},   {0x5d0, 0x5ea},    // Armenian, Hebrew
    {0x620, 0x64a},   {0x671, 0x6d3},   {0x904, 0x939},    // Arabic, Devanagari
    {0xe01, 0xe30},   {0x10d0, 0x10fa}, {0x1e00, 0x1f15},  // Thai, Georgian, Latin
    {0x3041, 0x3096}, {0x30a1, 0x30fa}, {0x30fc, 0x30ff},  // Japanese
    {0x3400, 0x4dbf}, {0x4e00, 0x9fff}, {0xac00, 0xd7a3},  // Chinese, Korean
};

bool is_letter(char32_t c) {
  return std::any_of(std::begin(kLetters), std::end(kLetters),
                     [&](const Range& range) { return range.first <= c && c <= range.last; });
}

// The bytes of the valid UTF-8 letter at the beginning; 0 if there is none.
size_t letter_size(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (absl::ascii_isalnum(byte(0)) || absl::StrContains("_-. :/", text[0])) return 1;
  const size_t size = byte(0) >> 5 == 6 ? 2 : byte(0) >> 4 == 14 ? 3 : 0;
  if (size == 0 || text.size() < size) return 0;
  char32_t c = byte(0) & (size == 2 ? 0x1f : 0x0f);
  for (size_t i = 1; i < size; ++i) {
    if (byte(i) >> 6 != 2) return 0;
    c = c << 6 | (byte(i) & 0x3f);
  }
  const bool is_shortest = size == 2 || c >= 0x800;
  return is_shortest && is_letter(c) ? size : 0;
}

bool begins_character(char c) { return (static_cast<unsigned char>(c) >> 6) != 2; }

}  // namespace

std::string mlflow_path_error(std::string_view path) {
  if (path.empty()) return "it is empty";
  if (path.find('\0') != path.npos || path.find('\\') != path.npos) {
    return "it holds a character that no path may hold";
  }
  for (const auto name : absl::StrSplit(std::string(path), '/')) {
    if (name.empty() || name == "." || name == "..") {
      return "it is not a relative path in its shortest form";
    }
  }
  return {};
}

std::string mlflow_name_error(std::string_view name) {
  if (name.size() > kMlflowMaxName) {
    return absl::StrCat("it has ", name.size(), " bytes, and MLflow allows ", kMlflowMaxName);
  }
  for (std::string_view rest = name; !rest.empty();) {
    const size_t size = letter_size(rest);
    if (size == 0) return "only letters, digits and _-. :/ are allowed";
    rest.remove_prefix(size);
  }
  return mlflow_path_error(name);
}

size_t utf8_length(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return begins_character(c); }));
}

std::string utf8_start(std::string_view text, size_t length) {
  size_t end = 0;
  for (; end < text.size(); ++end) {
    if (begins_character(text[end]) && length-- == 0) break;
  }
  return std::string(text.substr(0, end));
}

}  // namespace accelerate::trackers
