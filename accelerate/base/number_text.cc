#include "accelerate/base/number_text.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace accelerate {
namespace {

bool is_digit(char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); }

// Nothing where an underscore is not between digits.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      result += text[i];
    } else if (i == 0 || i + 1 == text.size() || !is_digit(text[i - 1]) || !is_digit(text[i + 1])) {
      return std::nullopt;
    }
  }
  return result;
}

// Bytes in the largest of the units, each 1024 times the one before, that leaves 1 at least.
std::pair<double, const char*> in_units(double bytes, std::initializer_list<const char*> units) {
  const char* unit = "bytes";
  for (const char* next : units) {
    if (bytes < 1024) break;
    bytes /= 1024;
    unit = next;
  }
  return {bytes, unit};
}

struct Unit {
  std::string_view name;  // in upper case
  double bytes;
  bool may_be_bits;
};
constexpr Unit kUnits[] = {{"GIB", 1 << 30, false}, {"MIB", 1 << 20, false},
                           {"KIB", 1 << 10, false}, {"GB", 1e9, true},
                           {"MB", 1e6, true},       {"KB", 1e3, true}};

constexpr double kTooLarge = 9223372036854775808.0;  // 2^63

}  // namespace

std::optional<bool> parse_bool(std::string_view text) {
  const std::string word = absl::AsciiStrToLower(std::string(text));
  for (const char* yes : {"y", "yes", "t", "true", "on", "1"}) {
    if (word == yes) return true;
  }
  for (const char* no : {"n", "no", "f", "false", "off", "0"}) {
    if (word == no) return false;
  }
  return std::nullopt;
}

std::optional<int64_t> parse_int(std::string_view text) {
  const std::optional<std::string> number = without_underscores(text);
  int64_t value = 0;
  if (!number || !absl::SimpleAtoi(*number, &value)) return std::nullopt;
  return value;
}

std::optional<double> parse_float(std::string_view text) {
  // Neither "0x1" nor "nan(1)".
  if (text.find_first_of("xX(") != std::string_view::npos) return std::nullopt;
  const std::optional<std::string> number = without_underscores(text);
  double value = 0;
  if (!number || !absl::SimpleAtod(*number, &value)) return std::nullopt;
  return value;
}

std::optional<int64_t> parse_byte_size(std::string_view size) {
  const std::string upper = absl::AsciiStrToUpper(std::string(size));
  for (const Unit& unit : kUnits) {
    if (!upper.ends_with(unit.name)) continue;
    const auto number = parse_float(size.substr(0, size.size() - unit.name.size()));
    if (!number) return std::nullopt;
    const double bytes = std::trunc(*number * unit.bytes);
    // Neither NaN nor negative numbers are sizes.
    if (!(bytes >= 0 && bytes < kTooLarge)) return std::nullopt;
    const bool bits = unit.may_be_bits && size.back() == 'b';
    return static_cast<int64_t>(bytes) / (bits ? 8 : 1);
  }
  return std::nullopt;
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const double size = std::abs(value);
  const bool plain = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer, end.ptr);
  if (plain && text.find('.') == std::string::npos) absl::StrAppend(&text, ".0");
  return text;
}

std::string byte_text(int64_t bytes) {
  return bytes < 1024 ? absl::StrCat(bytes, " bytes") : byte_text(static_cast<double>(bytes));
}

std::string byte_text(double bytes) {
  const auto [value, unit] = in_units(bytes, {"KB", "MB", "GB", "TB", "PB"});
  const std::string two_decimals = absl::StrFormat("%.2f", value);
  return absl::StrCat(float_text(std::strtod(two_decimals.c_str(), nullptr)), " ", unit);
}

std::string binary_byte_text(int64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " bytes");
  const auto [value, unit] = in_units(static_cast<double>(bytes), {"KiB", "MiB", "GiB", "TiB"});
  return absl::StrFormat("%.2f %s", value, unit);
}

}  // namespace accelerate
