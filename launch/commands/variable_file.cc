#include "launch/commands/variable_file.h"

#include <fstream>
#include <set>

#include "absl/strings/str_cat.h"
#include "launch/process/replace_file.h"

namespace accelerate::launch::commands {
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
  return process::replace_file(path, text, 0600);
}

}  // namespace accelerate::launch::commands
