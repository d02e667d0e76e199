#include "tools/lint/tidy.h"

#include <array>
#include <cctype>
#include <format>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace accelerate::tidy {
namespace {

// Words that the rules look for carry a gap here, so that this file passes the rules.
std::string without_gap(std::string word) {
  std::erase(word, '|');
  return word;
}
std::vector<std::string> without_gaps(const std::vector<std::string>& words) {
  std::vector<std::string> result;
  for (const std::string& word : words) result.push_back(without_gap(word));
  return result;
}

const std::vector<std::string> kMarkers = without_gaps({"TO|DO", "FIX|ME", "XX|X", "HA|CK"});
const std::vector<std::string> kSkips = without_gaps({"GTEST_|SKIP", "DIS|ABLED_"});
const std::string kMissingPart = without_gap("not imp|lemented");
const std::vector<std::string> kMachinePaths = without_gaps({"/wo|rk/", "/ro|ot/", "/ho|me/"});
// Denials of a noun, and the plain ones.
const std::vector<std::pair<std::string, std::string>> kDenials = {
    {without_gap("is n|o"), "is not a"}, {without_gap("are n|o"), "are not"}};
const std::vector<std::string> kOddWords = without_gaps({"hea|rs", "says a wo|rd", "say a wo|rd"});
// Words of our own for which the field has terms: rendezvous, unscale, synchronise, pad; and "no
// rank" says which one it is.
const std::vector<std::string> kOwnTerms =
    without_gaps({"ranks me|et", "machines me|et", "processes me|et", "threads me|et",
                  "place to me|et", "set|tle", "set|tles", "set|tled", "catch u|p", "catches u|p",
                  "caught u|p", "fill u|p", "fills u|p", "filled u|p", "filling u|p", "nob|ody"});
// A comparison or a phrase, which makes a denial plain English.
constexpr std::array<std::string_view, 11> kPlainAfterDenial = {
    "longer", "more",  "less",  "fewer", "larger", "smaller",
    "later",  "older", "newer", "such",  "better"};
const std::vector<std::string> kSleeps = {"sleep",     "usleep",      "nanosleep",
                                          "sleep_for", "sleep_until", "SleepFor"};

constexpr int kColumns = 100;
constexpr int kBzlColumns = 120;
// One command is one line where splitting it would hide what it does.
constexpr int kScriptColumns = 200;
constexpr int kHeaderLines = 400;
constexpr int kSourceLines = 700;
constexpr size_t kMaxBytes = 1 << 20;

// Longer than that, and read again with the question whether they are two ideas.
const std::set<std::string_view> kReviewedLongFiles = {
    "accelerate/accelerator.h",  // The facade: one idea, an entry per method.
};

const std::set<std::string_view> kTopLevel = {"accelerate", "ci",    "integration_tests", "launch",
                                              "simulator",  "tools", "trackers"};

bool is_header(std::string_view path) { return path.ends_with(".h"); }
bool is_markdown(std::string_view path) { return path.ends_with(".md"); }
bool is_build_file(std::string_view path) {
  const std::string_view name = base_name(path);
  return name == "BUILD" || name == "WORKSPACE" || name.ends_with(".BUILD") ||
         name.ends_with(".bazel");
}

bool is_blank(char c) { return std::isspace(static_cast<unsigned char>(c)); }
std::string_view without_leading_blanks(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  return text;
}

bool is_text(const File& file) {
  return !is_data(file.path) && file.contents.find('\0') == std::string::npos;
}

bool is_word_character(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

std::string in_lower_case(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

bool contains(std::string_view text, const auto& part) { return text.find(part) != text.npos; }

// Where `word` stands in `text` with no letter, digit or underscore at either side.
std::vector<size_t> places_of_word(std::string_view text, std::string_view word) {
  std::vector<size_t> places;
  for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if (at > 0 && is_word_character(text[at - 1])) continue;
    if (end < text.size() && is_word_character(text[end])) continue;
    places.push_back(at);
  }
  return places;
}

int columns(std::string_view line) {
  // Continuation bytes of UTF-8 take no column of their own.
  return std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

// Whether a line in lower case has the denial before a noun. A line may continue the "there" of the
// one before it, so the words at its start do not count.
bool denies_a_noun(std::string_view line, std::string_view denial) {
  for (size_t at : places_of_word(line, denial)) {
    const std::string_view after = line.substr(at + denial.size());
    if (after.size() < 2 || after[0] != ' ' || !is_word_character(after[1])) continue;
    if (starts_with_any(after.substr(1), kPlainAfterDenial)) continue;
    const std::string_view before = line.substr(0, at);
    const bool starts_line = before.find_first_not_of(" /#*") == before.npos;
    if (!starts_line && !before.ends_with("there ")) return true;
  }
  return false;
}

// Whether the line has a comment, of this sign, whose first word is "Of".
bool has_comment_of(std::string_view line, std::string_view sign) {
  for (size_t at = line.find(sign); at != line.npos; at = line.find(sign, at + 1)) {
    const std::string_view comment = line.substr(at);
    const size_t text = comment.find_first_not_of("/#<");
    if (text != comment.npos && comment.substr(text).starts_with(" Of ")) return true;
  }
  return false;
}

// The text from the first comment sign on. A sign within a string counts, too: few strings have
// one.
std::string_view comment_of(std::string_view line, std::string_view sign) {
  const size_t at = line.find(sign);
  return at == line.npos ? std::string_view() : line.substr(at);
}

// Whether a sentence that is not the first one begins with "Of" and has no article behind it, as
// fragments do.
bool has_fragment_of(std::string_view text) {
  for (size_t at = text.find(". Of "); at != text.npos; at = text.find(". Of ", at + 1)) {
    if (!text.substr(at + 5).starts_with("the ")) return true;
  }
  return false;
}

// The first of our own terms in a text in lower case, unless it is quoted there; empty if there is
// none.
std::string own_term_in(std::string_view text) {
  for (const std::string& term : kOwnTerms) {
    for (size_t at : places_of_word(text, term)) {
      if (at == 0 || !contains("\"`", text[at - 1])) return term;
    }
  }
  return "";
}

// One URL, perhaps behind a comment sign or a list's dash.
bool is_url(std::string_view line) {
  line = without_leading_blanks(line);
  const std::string_view last_word = line.substr(line.rfind(' ') + 1);
  const std::string_view before = line.substr(0, line.size() - last_word.size());
  return contains(last_word, "://") && before.size() <= 4 &&
         std::none_of(before.begin(), before.end(), is_word_character);
}

int max_columns(std::string_view path) {
  if (is_markdown(path) || is_build_file(path) || path.ends_with(".csv")) {
    return std::numeric_limits<int>::max();
  }
  if (path.ends_with(".bzl")) return kBzlColumns;
  return is_cpp(path) ? kColumns : kScriptColumns;
}

// The cells of a line of a Markdown table, in lower case and without blanks around them, ` and *;
// none for another line.
std::vector<std::string> cells_of_row(std::string_view line) {
  std::vector<std::string> cells;
  if (!line.starts_with('|')) return cells;
  std::string cell;
  for (size_t at = 1; at < line.size(); ++at) {
    if (line[at] == '|' && line[at - 1] != '\\') {
      while (!cell.empty() && is_blank(cell.back())) cell.pop_back();
      cells.push_back(std::exchange(cell, ""));
    } else if (!contains("`*", line[at]) && !(cell.empty() && is_blank(line[at]))) {
      cell += static_cast<char>(std::tolower(static_cast<unsigned char>(line[at])));
    }
  }
  return cells;
}

// From an opening parenthesis to behind the closing one. Strings and comments are skipped.
size_t end_of_call(std::string_view text, size_t open) {
  int depth = 0;
  for (size_t at = open; at < text.size(); ++at) {
    if (text[at] == '"' || text[at] == '#') {
      const char end = text[at] == '"' ? '"' : '\n';
      at = text.find(end, at + 1);
      if (at == text.npos) break;
    } else if (text[at] == '(') {
      ++depth;
    } else if (text[at] == ')' && --depth == 0) {
      return at + 1;
    }
  }
  return text.size();
}

// Whether a call has the argument `name = ...`.
bool gives(std::string_view call, std::string_view name) {
  for (size_t at : places_of_word(call, name)) {
    if (without_leading_blanks(call.substr(at + name.size())).starts_with('=')) return true;
  }
  return false;
}

// The nearest BUILD file at or above the folder, if there is one.
const File* build_file_of(const std::map<std::string_view, const File*>& builds,
                          std::string_view path) {
  for (std::string_view folder = folder_of(path);; folder = folder_of(folder)) {
    if (auto found = builds.find(folder); found != builds.end()) return found->second;
    if (folder.empty()) return nullptr;
  }
}

}  // namespace

std::string_view base_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }
std::string_view folder_of(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == path.npos ? "" : path.substr(0, slash);
}

bool is_cpp(std::string_view path) { return is_header(path) || path.ends_with(".cc"); }
bool is_test(std::string_view path) {
  return path.ends_with("_test.cc") || path.starts_with("integration_tests/") ||
         path.find("/testing/") != path.npos;
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

std::string to_string(const Finding& finding) {
  return std::format("{}:{}: {}", finding.path, finding.line, finding.message);
}

bool is_data(const std::string& path) {
  if (path.starts_with("accelerate/examples/")) {
    return path.ends_with(".safetensors") || path.ends_with(".txt");
  }
  if (contains(path, "/fuzz/corpus/")) return true;
  return path.starts_with("integration_tests/golden/data/") && path.ends_with(".json");
}

Findings check_line_length(const File& file) {
  const int limit = max_columns(file.path);
  return for_each_line(file, [&](std::string_view line) -> std::string {
    const int length = columns(line);
    if (length <= limit || is_url(line)) return "";
    return std::format("line of {} columns, more than {}", length, limit);
  });
}

Findings check_blanks(const File& file) {
  Findings findings = for_each_line(file, [](std::string_view line) -> std::string {
    if (contains(line, '\t')) return "tab";
    if (!line.empty() && is_blank(line.back())) return "blank at the end of the line";
    return "";
  });
  const std::string_view text = file.contents;
  const int last = static_cast<int>(lines_of(text).size());
  if (!text.empty() && !text.ends_with('\n')) {
    findings.push_back({file.path, last, "no newline at the end of the file"});
  } else if (text == "\n" || text.ends_with("\n\n")) {
    findings.push_back({file.path, last, "empty line at the end of the file"});
  }
  return findings;
}

Findings check_leftovers(const File& file) {
  return for_each_line(file, [&](std::string_view line) -> std::string {
    for (const std::string& marker : kMarkers) {
      if (!places_of_word(line, marker).empty()) return "leftover marker " + marker;
    }
    if (is_markdown(file.path)) return "";  // A document may say what does not exist.
    if (contains(in_lower_case(line), kMissingPart)) return "a missing part";
    for (const std::string& skip : kSkips) {
      if (contains(line, skip)) return "a test that does not run: " + skip;
    }
    return "";
  });
}

Findings check_machine_paths(const File& file) {
  return for_each_line(file, [](std::string_view line) -> std::string {
    for (const std::string& path : kMachinePaths) {
      for (size_t at = line.find(path); at != line.npos; at = line.find(path, at + 1)) {
        // Behind a name or a variable it is the tail of a longer path.
        if (at > 0 && (is_word_character(line[at - 1]) || contains(".-~}", line[at - 1]))) {
          continue;
        }
        return "path of one machine, below " + path;
      }
    }
    return "";
  });
}

Findings check_wording(const File& file) {
  const bool is_script = file.path.ends_with(".sh") || file.path.ends_with(".py");
  if (!is_cpp(file.path) && !is_markdown(file.path) && !is_script) return {};
  if (file.path.starts_with("integration_tests/golden/data/")) return {};
  return for_each_line(file, [&](std::string_view line) -> std::string {
    const std::string text = in_lower_case(line);
    for (const auto& [denial, plain] : kDenials) {
      if (!denies_a_noun(text, denial)) continue;
      return std::format("\"{}\" before a noun: say \"{}\"", denial, plain);
    }
    const std::string_view sign = is_script ? "#" : "//";
    if (!is_markdown(file.path) && has_comment_of(line, sign)) {
      return "a comment that begins with \"Of\": write a sentence";
    }
    // Names in code are not words.
    const std::string_view prose = is_markdown(file.path) ? line : comment_of(line, sign);
    if (has_fragment_of(prose)) return "a sentence that begins with \"Of\": give it a subject";
    if (const std::string term = own_term_in(in_lower_case(prose)); !term.empty()) {
      return std::format("\"{}\": say it in the field's terms", term);
    }
    for (const std::string& words : kOddWords) {
      if (!places_of_word(text, words).empty()) return "odd wording: " + words;
    }
    return "";
  });
}

Findings check_size(const File& file) {
  if (file.contents.size() <= kMaxBytes || is_data(file.path)) return {};
  return {{file.path, 0, std::format("{} bytes, more than 1 MiB", file.contents.size())}};
}

Findings check_repeated_rows(const File& file) {
  if (file.path != kDifferencesPath && file.path != kStatusPath) return {};
  std::map<std::string, int> seen;  // the texts of rows so far, with their lines
  size_t cells_of_head = 0;         // 0 outside of a table
  int number = 0;
  return for_each_line(file, [&](std::string_view line) -> std::string {
    ++number;
    const std::vector<std::string> cells = cells_of_row(line);
    if (cells_of_head == 0 || cells.empty()) {
      cells_of_head = cells.size();
      return "";
    }
    if (cells.size() != cells_of_head) {
      return std::format("a row of {} cells in a table of {}", cells.size(), cells_of_head);
    }
    if (cells.front().starts_with("---")) return "";
    const auto [area, is_new_area] = seen.emplace(cells.front(), number);
    if (!is_new_area) {
      return std::format("a second row about \"{}\", after line {}", cells.front(), area->second);
    }
    if (file.path != kDifferencesPath) return "";
    std::string rest;
    for (size_t i = 1; i < cells.size(); ++i) rest += "|" + cells[i];
    const auto [text, is_new_text] = seen.emplace(rest, number);
    if (!is_new_text) return std::format("the row says the same as line {}", text->second);
    return "";
  });
}

Findings check_header(const File& file) {
  if (!is_header(file.path)) return {};
  Findings findings;
  if (!file.contents.starts_with("///")) {
    findings.push_back({file.path, 1, "the header does not open with a /// comment"});
  }
  bool once = false;
  Findings in_lines = for_each_line(file, [&](std::string_view line) -> std::string {
    once = once || line == "#pragma once";
    if (included_path(line) == "torch/torch.h") {
      return "torch/torch.h in a header: include what is used, it costs seconds per source";
    }
    if (without_leading_blanks(line).starts_with("using namespace ")) {
      return "using namespace in a header";
    }
    return "";
  });
  if (!once) findings.push_back({file.path, 1, "no #pragma once"});
  findings.insert(findings.end(), in_lines.begin(), in_lines.end());
  return findings;
}

Findings check_number_of_lines(const File& file) {
  if (!is_cpp(file.path) || kReviewedLongFiles.contains(file.path)) return {};
  const int limit = is_header(file.path) ? kHeaderLines : kSourceLines;
  const int lines = static_cast<int>(lines_of(file.contents).size());
  if (lines <= limit) return {};
  return {{file.path, limit + 1,
           std::format("{} lines, more than {}: is this two ideas?", lines, limit)}};
}

Findings check_sleeps(const File& file) {
  if (!is_cpp(file.path) || !is_test(file.path)) return {};
  return for_each_line(file, [](std::string_view line) -> std::string {
    for (const std::string& sleep : kSleeps) {
      for (size_t at : places_of_word(line, sleep)) {
        const std::string_view before = line.substr(0, at);
        const bool called = line.substr(at + sleep.size()).starts_with('(');
        // A member's sleep is that of a clock which the test controls, or declares.
        const bool member =
            before.ends_with('.') || before.ends_with("->") || before.ends_with("void ");
        if (called && !member) return "a test that sleeps: " + sleep;
      }
    }
    return "";
  });
}

Findings check_test_sizes(const File& file) {
  if (base_name(file.path) != "BUILD") return {};
  const std::string_view text = file.contents;
  return for_each_line(file, [&](std::string_view line) -> std::string {
    const size_t open = line.find('(');
    if (open == line.npos) return "";
    const std::string_view rule = line.substr(0, open);
    if (!rule.ends_with("cc_test") && rule != "sh_test") return "";
    const size_t start = line.data() - text.data();
    const size_t end = end_of_call(text, start + open);
    return gives(text.substr(start, end - start), "size") ? ""
                                                          : std::format("{} without a size", rule);
  });
}

Findings check_dead_files(const std::vector<File>& files) {
  std::map<std::string_view, const File*> builds;  // by folder
  for (const File& file : files) {
    if (base_name(file.path) == "BUILD") builds[folder_of(file.path)] = &file;
  }
  Findings findings;
  for (const File& file : files) {
    if (!is_cpp(file.path)) continue;
    const File* build = build_file_of(builds, file.path);
    if (build == nullptr) {
      findings.push_back({file.path, 0, "no BUILD file in its folder or above"});
      continue;
    }
    const std::string_view folder = folder_of(build->path);
    const std::string_view name =
        std::string_view(file.path).substr(folder.empty() ? 0 : folder.size() + 1);
    // A room holds every source of its own folder.
    const bool in_room = contains(build->contents, "\nroom(") && !contains(name, '/');
    if (!in_room && !contains(build->contents, std::format("\"{}\"", name))) {
      findings.push_back(
          {file.path, 0, std::format("dead file: {} does not name it", build->path)});
    }
  }
  return findings;
}

Findings check_top_level(const std::vector<File>& files) {
  std::set<std::string_view> reported;
  Findings findings;
  for (const File& file : files) {
    const std::string_view path = file.path;
    const size_t slash = path.find('/');
    if (slash == path.npos || path.starts_with('.')) continue;
    const std::string_view folder = path.substr(0, slash);
    if (!kTopLevel.contains(folder) && reported.insert(folder).second) {
      findings.push_back(
          {file.path, 0, std::format("folder at the top outside the fixed list: {}", folder)});
    }
  }
  return findings;
}

Findings check_tree(const std::vector<File>& files) {
  constexpr std::array kTextRules = {check_line_length,     check_blanks,  check_leftovers,
                                     check_machine_paths,   check_wording, check_header,
                                     check_number_of_lines, check_sleeps,  check_test_sizes,
                                     check_repeated_rows};
  Findings findings;
  auto add = [&](Findings more) { findings.insert(findings.end(), more.begin(), more.end()); };
  for (const File& file : files) {
    add(check_size(file));
    if (!is_text(file)) continue;
    for (auto rule : kTextRules) add(rule(file));
  }
  add(check_dead_files(files));
  add(check_floors(files));
  add(check_lowest_floors(files));
  add(check_file_circles(files));
  add(check_simulated_names(files));
  add(check_process_questions(files));
  add(check_top_level(files));
  std::stable_sort(findings.begin(), findings.end(), [](const Finding& a, const Finding& b) {
    return std::tie(a.path, a.line) < std::tie(b.path, b.line);
  });
  return findings;
}

}  // namespace accelerate::tidy
