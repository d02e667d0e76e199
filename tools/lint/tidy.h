/// The rules of a tidy file, and of a tidy tree of files: one small function per rule.
///
/// A rule takes files and returns what is wrong with them; a rule that does not concern a file
/// returns nothing. Rules look at text, line by line: they know no C++ beyond that.
/// Paths are relative to the root of the tree, with '/' between folders.
/// Lengths: columns are code points, line numbers start at 1; 0 stands for the whole file.
/// Threads: pure functions.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace accelerate::tidy {

struct File {
  std::string path;
  std::string contents;
};

struct Finding {
  std::string path;
  int line = 0;
  std::string message;

  bool operator==(const Finding&) const = default;
};

using Findings = std::vector<Finding>;

/// The list of the floors of each top-level folder.
inline constexpr char kFloorsPath[] = "tools/build_defs/floors.bzl";

/// The documents whose tables say something once: a second row would be changed without the first.
inline constexpr char kDifferencesPath[] = "accelerate/docs/differences.md";
inline constexpr char kStatusPath[] = "accelerate/docs/status.md";

/// `path:line: message`.
std::string to_string(const Finding& finding);

// ---- Any text file. Data (see is_data) and binary files are not text.

/// Golden vectors, datasets and other files that are not written by hand.
bool is_data(const std::string& path);

/// 100 columns in C++; 120 in .bzl; 200 in scripts; no limit in BUILD files, Markdown and tables
/// (.csv), nor for a line that is one URL.
Findings check_line_length(const File& file);
/// No tabs, no trailing blanks, exactly one newline at the end.
Findings check_blanks(const File& file);
/// Nothing left over from work in progress: markers, disabled or skipped tests, missing parts.
Findings check_leftovers(const File& file);
/// No absolute path of somebody's machine.
Findings check_machine_paths(const File& file);
/// Plain English in C++, Markdown, shell and Python, golden vectors aside. Finds "is no" and "are
/// no" before a noun ("is not a" is plain; "there is no" and "is no longer" may stay), comments
/// that begin with "Of", later sentences that do without an article ("Of the" may stay), ranks or
/// parts that hear or say words, and in comments and Markdown words for which the field has terms,
/// unless they are quoted.
Findings check_wording(const File& file);
/// At most 1 MiB, unless it is data.
Findings check_size(const File& file);

// ---- Tables in documents.

/// In a table of facts, of differences from HF Accelerate or of what works where, a row has as many
/// cells as the table's head, and no two rows of a document are about the same: their first cells
/// differ. Nor do two differences have the same text. Capitals, ` and * do not count.
Findings check_repeated_rows(const File& file);

// ---- C++.

/// A header opens with a /// comment, has #pragma once, and does not open namespaces for others.
Findings check_header(const File& file);
/// 400 lines of a header and 700 of a source are one idea; more are two, or reviewed.
Findings check_number_of_lines(const File& file);
/// A test waits for what it waits for, never for a while. (A Runtime's sleep_for takes no time.)
Findings check_sleeps(const File& file);

// ---- Bazel.

/// A test says its size.
Findings check_test_sizes(const File& file);

// ---- The tree.

/// Every .cc and .h is named in the BUILD file that it belongs to.
Findings check_dead_files(const std::vector<File>& files);
/// Everything in the includes that the list of floors (kFloorsPath) does not allow: an arrow to the
/// same floor or upward, a folder that is on no floor, another top-level folder's room that is not
/// open, LibTorch in a room without it, and a cycle of folders. Tests, benchmarks and folders
/// beside the floors (testing, examples) may include any room of their top-level folder.
/// integration_tests may include everything, and nothing includes them.
Findings check_floors(const std::vector<File>& files);
/// Rooms on higher floors of the list than they need: a floor is a permission. A room needs a floor
/// above all rooms that its files include and its BUILD file depends on, for tests and programs
/// too; not above public rooms that its tests alone need.
Findings check_lowest_floors(const std::vector<File>& files);
/// Circles of files inside a room: units, which are NAME.h with NAME.cc, that include each other,
/// directly or not. Tests, benchmarks and folders beside the floors do not count.
Findings check_file_circles(const std::vector<File>& files);
/// The library does not know the simulator's devices: outside of comments no source of accelerate/
/// has a name of simulator/hardware/presets.cc; names without a digit are families, which it has.
/// Tests, benchmarks, testing/ and examples/ may.
Findings check_simulated_names(const std::vector<File>& files);
/// Few places of accelerate/ ask Runtime::owns_process(); what they want mostly has a question of
/// its own. Tests and testing/ do not count, nor do declarations.
Findings check_process_questions(const std::vector<File>& files);
/// Only the fixed folders at the top, dot-folders aside.
Findings check_top_level(const std::vector<File>& files);

/// All rules over all files, by path and line.
Findings check_tree(const std::vector<File>& files);

/// The folders with their floors, the highest first, and for each room the rooms that it includes.
/// The first line of a folder counts its rooms, arrows, upward arrows and folder cycles.
std::string draw_floors(const std::vector<File>& files);

/// "floors needed = floors declared = 12, circles of files 0": of the folder that has most floors.
/// A line; empty without the list.
std::string summary_of_floors(const std::vector<File>& files);

// ---- Questions to paths and lines, which the rules share. The views are of the argument.

/// "c" of "a/b/c".
std::string_view base_name(std::string_view path);
/// "a/b" of "a/b/c"; empty for a file at the top.
std::string_view folder_of(std::string_view path);

bool is_cpp(std::string_view path);
/// A test, or a file that only tests use.
bool is_test(std::string_view path);

/// Lines without their newlines; the newline at the end opens no further line.
std::vector<std::string_view> lines_of(std::string_view text);

/// The path that a line includes, without its quotes or angles; empty if it includes nothing.
std::string_view included_path(std::string_view line);

bool starts_with_any(std::string_view text, const auto& prefixes) {
  return std::ranges::any_of(prefixes,
                             [&](std::string_view prefix) { return text.starts_with(prefix); });
}

/// A finding for each line for which `message_for` gives a message.
Findings for_each_line(const File& file, const auto& message_for) {
  Findings findings;
  int number = 0;
  for (std::string_view line : lines_of(file.contents)) {
    ++number;
    if (std::string message = message_for(line); !message.empty()) {
      findings.push_back({file.path, number, std::move(message)});
    }
  }
  return findings;
}

}  // namespace accelerate::tidy
