#include "launch/commands/variable_file.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace accelerate::launch {
namespace {

std::string name_of(const std::string& line) { return line.substr(0, line.find('=')); }

}  // namespace

absl::Status update_variable_file(const std::string& path, const std::vector<std::string>& lines) {
  std::set<std::string> names;
  for (const std::string& line : lines) names.insert(name_of(line));
  std::string text;
  std::ifstream before(path);
  for (std::string line; std::getline(before, line);) {
    if (!names.contains(name_of(line))) absl::StrAppend(&text, line, "\n");
  }
  for (const std::string& line : lines) absl::StrAppend(&text, line, "\n");

  const std::string draft = absl::StrCat(path, ".new");
  std::error_code error;
  std::ofstream file(draft, std::ios::trunc);
  std::filesystem::permissions(
      draft, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write, error);
  file << text;
  file.close();
  if (file && !error) std::filesystem::rename(draft, path, error);
  if (file && !error) return absl::OkStatus();
  std::filesystem::remove(draft, error);
  return absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
}

}  // namespace accelerate::launch
