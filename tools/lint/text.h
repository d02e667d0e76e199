/// Small questions to paths and lines, which the rules share.
///
/// Threads: pure functions. The views are of the argument.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

namespace accelerate::tidy {

/// "c" of "a/b/c".
std::string_view base_name(std::string_view path);
/// "a/b" of "a/b/c"; empty for a file at the top.
std::string_view folder_of(std::string_view path);

bool is_header(std::string_view path);
bool is_source(std::string_view path);
bool is_cpp(std::string_view path);
bool is_markdown(std::string_view path);
bool is_build_file(std::string_view path);
/// A test, or a file that only tests use.
bool is_test(std::string_view path);

bool is_blank(char c);
std::string_view without_leading_blanks(std::string_view text);

/// Lines without their newlines; the newline at the end opens no further line.
std::vector<std::string_view> lines_of(std::string_view text);

/// What a line includes, without its quotes or angles; empty if it includes nothing.
std::string_view included_path(std::string_view line);

bool starts_with_any(std::string_view text, const auto& prefixes) {
  return std::any_of(std::begin(prefixes), std::end(prefixes),
                     [&](std::string_view prefix) { return text.starts_with(prefix); });
}

}  // namespace accelerate::tidy
