#include "trackers/mlflow/mlflow_names.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace accelerate::trackers {

std::string mlflow_path_error(std::string_view path) {
  if (path.empty()) return "it is empty";
  if (path.find('\0') != path.npos || path.find('\\') != path.npos) {
    return "it holds a character that no path may hold";
  }
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view name = path.substr(begin, end - begin);
    begin = end + 1;
    if (name.empty() || name == "." || name == "..") {
      return "it is no relative path in its shortest form";
    }
  }
  return {};
}

std::string mlflow_name_error(std::string_view name) {
  if (name.size() > kMlflowMaxName) {
    return absl::StrCat("it has ", name.size(), " bytes, and MLflow allows ", kMlflowMaxName);
  }
  const bool plain = std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || absl::StrContains("_-. :/", static_cast<char>(c));
  });
  if (!plain) return "only letters of ASCII, digits and _-. :/ are allowed";
  return mlflow_path_error(name);
}

size_t utf8_length(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) >> 6) != 2; }));
}

}  // namespace accelerate::trackers
