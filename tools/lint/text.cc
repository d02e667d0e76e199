#include "tools/lint/text.h"

#include <cctype>

namespace accelerate::tidy {

std::string_view base_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }
std::string_view folder_of(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == path.npos ? "" : path.substr(0, slash);
}

bool is_header(std::string_view path) { return path.ends_with(".h"); }
bool is_source(std::string_view path) { return path.ends_with(".cc"); }
bool is_cpp(std::string_view path) { return is_header(path) || is_source(path); }
bool is_markdown(std::string_view path) { return path.ends_with(".md"); }
bool is_build_file(std::string_view path) {
  const std::string_view name = base_name(path);
  return name == "BUILD" || name == "WORKSPACE" || name.ends_with(".BUILD") ||
         name.ends_with(".bazel");
}
bool is_test(std::string_view path) {
  return path.ends_with("_test.cc") || path.starts_with("integration_tests/") ||
         path.find("/testing/") != path.npos;
}

bool is_blank(char c) { return std::isspace(static_cast<unsigned char>(c)); }
std::string_view without_leading_blanks(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  return text;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

std::string_view included_path(std::string_view line) {
  line = without_leading_blanks(line);
  if (!line.starts_with('#')) return {};
  line = without_leading_blanks(line.substr(1));
  if (!line.starts_with("include")) return {};
  const size_t open = line.find_first_of("<\"");
  if (open == line.npos) return {};
  const size_t close = line.find_first_of(">\"", open + 1);
  return close == line.npos ? std::string_view() : line.substr(open + 1, close - open - 1);
}

}  // namespace accelerate::tidy
