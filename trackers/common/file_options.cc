#include "trackers/common/file_options.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "trackers/common/init_kwargs.h"

namespace accelerate::trackers {
namespace {

// File systems allow 255 bytes; suffixes and temporary names need some of them.
constexpr size_t kMaxPart = 180;

uint64_t hash_of(std::string_view text) {  // FNV-1a
  uint64_t hash = 14695981039346656037U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return hash;
}

std::string safe_part(std::string_view part) {
  std::string safe;
  for (const char c : part) {
    const auto byte = static_cast<unsigned char>(c);
    // "." and ".." would lead to other folders.
    const bool leads_away = safe.empty() && c == '.' && (part == "." || part == "..");
    if (byte < 0x20 || byte == 0x7f || leads_away) {
      absl::StrAppendFormat(&safe, "%%%02X", byte);
    } else {
      safe += c;
    }
  }
  if (safe.size() <= kMaxPart) return safe;
  size_t cut = kMaxPart;
  while (cut > 0 && (static_cast<unsigned char>(safe[cut]) & 0xc0) == 0x80) --cut;  // whole UTF-8
  // The hash tells long names with the same beginning apart.
  return absl::StrCat(safe.substr(0, cut), "-", absl::Hex(hash_of(part)));
}

}  // namespace

FileOptions file_options(std::string_view tracker, const TrackerSetup& setup) {
  InitKwargs kwargs(tracker, setup.init_kwargs);
  FileOptions options;
  if (const auto dir = kwargs.text("dir")) {
    if (dir->empty()) kwargs.refuse("dir", "the name of a folder");
    options.folder = folder_of_rank(*dir, setup.services.rank);
  } else {
    options.folder = join_path(setup.logging_dir, safe_path(setup.project_name));
  }
  options.run = kwargs.text("name").value_or(
      absl::StrCat(absl::FormatTime("%Y%m%d-%H%M%S-", setup.time, absl::UTCTimeZone()),
                   absl::Hex(setup.random_bits & 0xffff, absl::kZeroPad4)));
  kwargs.finish();
  return options;
}

std::string folder_of_rank(const std::string& folder, int rank) {
  return rank == 0 ? folder : join_path(folder, absl::StrCat("rank_", rank));
}

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
