#include "trackers/common/safe_path.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace accelerate::trackers {
namespace {

// Disks take 255 bytes; suffixes and temporary names need some.
constexpr size_t kMaxPart = 180;

uint64_t hash_of(std::string_view text) {  // FNV-1a
  uint64_t hash = 14695981039346656037U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return hash;
}

std::string escaped(char c) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  const auto byte = static_cast<unsigned char>(c);
  return {'%', kDigits[byte >> 4], kDigits[byte & 15]};
}

std::string safe_part(std::string_view part) {
  std::string safe;
  for (const char c : part) {
    const auto byte = static_cast<unsigned char>(c);
    const bool leads_away = safe.empty() && c == '.' && (part == "." || part == "..");
    if (byte < 0x20 || byte == 0x7f || leads_away) {
      safe += escaped(c);
    } else {
      safe += c;
    }
  }
  if (safe.size() <= kMaxPart) return safe;
  size_t cut = kMaxPart;
  while (cut > 0 && (static_cast<unsigned char>(safe[cut]) & 0xc0) == 0x80) --cut;  // whole UTF-8
  return absl::StrCat(safe.substr(0, cut), "-", absl::Hex(hash_of(part)));
}

}  // namespace

std::string safe_path(std::string_view name) {
  std::string path;
  while (!name.empty()) {
    const size_t end = std::min(name.find('/'), name.size());
    if (end > 0) absl::StrAppend(&path, path.empty() ? "" : "/", safe_part(name.substr(0, end)));
    name.remove_prefix(std::min(end + 1, name.size()));
  }
  return path.empty() ? "_" : path;
}

}  // namespace accelerate::trackers
