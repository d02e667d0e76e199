#include "trackers/common/yes_or_no.h"

#include <string>

#include "absl/strings/ascii.h"

namespace accelerate::trackers {

std::optional<bool> yes_or_no(std::string_view text) {
  const std::string lower = absl::AsciiStrToLower(std::string(text));
  for (const char* const yes : {"y", "yes", "t", "true", "on", "1"}) {
    if (lower == yes) return true;
  }
  for (const char* const no : {"n", "no", "f", "false", "off", "0"}) {
    if (lower == no) return false;
  }
  return std::nullopt;
}

}  // namespace accelerate::trackers
