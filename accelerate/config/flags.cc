#include "accelerate/config/flags.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <string>
#include <string_view>

#include <c10/util/Exception.h>

namespace accelerate {

bool flag_from_env(const Environment& environment, const char* name, bool fallback) {
  const std::string given = environment.get_or(name, "");
  if (given.empty()) return fallback;
  std::string text = given;
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  static constexpr std::array<std::string_view, 6> kTrue{"y", "yes", "t", "true", "on", "1"};
  static constexpr std::array<std::string_view, 6> kFalse{"n", "no", "f", "false", "off", "0"};
  if (std::find(kTrue.begin(), kTrue.end(), text) != kTrue.end()) return true;
  if (std::find(kFalse.begin(), kFalse.end(), text) != kFalse.end()) return false;
  TORCH_CHECK_VALUE(false, name, "=\"", given, "\" is neither true nor false");
}

std::optional<int64_t> count_from_env(const Environment& environment, const char* name,
                                      int64_t minimum) {
  const std::string text = environment.get_or(name, "");
  if (text.empty()) return std::nullopt;
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  TORCH_CHECK_VALUE(error == std::errc() && stop == end && value >= minimum, name, "=\"", text,
                    "\" is not a number of at least ", minimum);
  return value;
}

}  // namespace accelerate
