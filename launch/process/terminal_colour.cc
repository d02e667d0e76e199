#include "launch/process/terminal_colour.h"

#include <unistd.h>

#include <cstddef>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace accelerate::launcher::process {
namespace {

constexpr char kReset[] = "\x1b[0m";
constexpr char kBoldRed[] = "\x1b[1;31m";
// Red is for errors, and black and white are backgrounds.
constexpr const char* kRankColours[] = {"\x1b[36m", "\x1b[33m", "\x1b[32m", "\x1b[35m", "\x1b[34m"};

}  // namespace

bool shows_colour(int fd, const Environment& environment) {
  if (!environment.get_or("NO_COLOR", "").empty()) return false;
  if (environment.get_or("CLICOLOR_FORCE", "0") != "0") return true;
  return environment.get_or("TERM", "dumb") != "dumb" && isatty(fd) == 1;
}

std::string as_error(absl::string_view text, bool has_colour) {
  if (!has_colour) return std::string(text);
  return absl::StrCat(kBoldRed, text, kReset);
}

std::string rank_prefix(int rank, bool has_colour) {
  const std::string text = absl::StrCat("[rank ", rank, "] ");
  if (!has_colour) return text;
  const char* colour = kRankColours[static_cast<size_t>(rank) % std::size(kRankColours)];
  return absl::StrCat(colour, text, kReset);
}

}  // namespace accelerate::launcher::process
