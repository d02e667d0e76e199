#include "accelerate/base/number_text.h"

#include <charconv>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

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

}  // namespace

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

}  // namespace accelerate
