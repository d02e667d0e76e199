#include "launch/commands/libtorch_search.h"

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "launch/process/environment_words.h"

namespace accelerate::launch::commands {

using process::environment_value;
namespace {

namespace fs = std::filesystem;

// Folders of Python packages below `prefix`, "lib/python3.13/site-packages".
void add_python_folders(const std::string& prefix, std::vector<fs::path>& folders) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(fs::path(prefix) / "lib", ignored)) {
    if (!absl::StartsWith(entry.path().filename().string(), "python3")) continue;
    folders.push_back(entry.path() / "site-packages");
    folders.push_back(entry.path() / "dist-packages");
  }
}

std::vector<fs::path> search_folders(absl::Span<const std::string> environment) {
  std::vector<fs::path> folders;
  if (const std::string root = environment_value(environment, "LIBTORCH"); !root.empty()) {
    folders.push_back(fs::path(root) / "lib");
  }
  for (absl::string_view root : absl::StrSplit(environment_value(environment, "CMAKE_PREFIX_PATH"),
                                               absl::ByAnyChar(":;"), absl::SkipEmpty())) {
    folders.push_back(fs::path(std::string(root)) / "lib");
  }
  std::vector<fs::path> packages;
  for (const std::string& prefix : {environment_value(environment, "VIRTUAL_ENV"),
                                    environment_value(environment, "CONDA_PREFIX"),
                                    std::string("/usr/local"), std::string("/usr")}) {
    if (!prefix.empty()) add_python_folders(prefix, packages);
  }
  for (const fs::path& folder : packages) {
    // Vendors' devices come as packages of their own.
    for (const char* package :
         {"torch", "torch_npu", "torch_mlu", "torch_musa", "habana_frameworks/torch", "libtpu"}) {
      folders.push_back(folder / package / "lib");
      folders.push_back(folder / package);
    }
  }
  return folders;
}

std::string first_version_in(const fs::path& file, const char* pattern) {
  std::ifstream stream(file);
  std::stringstream text;
  text << stream.rdbuf();
  std::smatch match;
  const std::string contents = text.str();
  return std::regex_search(contents, match, std::regex(pattern)) ? match[1].str() : "";
}

}  // namespace

LibraryProbe probe_torch_library(const std::string& library,
                                 absl::Span<const std::string> environment) {
  LibraryProbe first = probe_library(library);
  if (first.is_loadable) return first;
  for (const fs::path& folder : search_folders(environment)) {
    std::error_code ignored;
    const fs::path file = folder / library;
    if (!fs::exists(file, ignored)) continue;
    // A file that exists but cannot be loaded is the error to report.
    first = probe_library(file.string());
    if (first.is_loadable) return first;
    first.path = file.string();
  }
  return first;
}

std::string libtorch_version(const std::string& path) {
  const fs::path library(path);
  const fs::path root = library.parent_path().parent_path();
  // A release as an archive has a file of its own for this, a Python package a module; in a
  // distribution the library's own name says it.
  std::string version = first_version_in(root / "build-version", R"(^\s*([0-9]\S*))");
  if (version.empty()) {
    version = first_version_in(root / "version.py", R"(__version__ = '([^']+)')");
  }
  if (version.empty()) {
    const std::string name = library.filename();
    const size_t end = name.find(".so.");
    if (end != name.npos) version = name.substr(end + 4);
  }
  return version;
}

}  // namespace accelerate::launch::commands
