#include "tools/lint/tidy.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <format>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::tidy {
namespace {

constexpr char kPresetsPath[] = "simulator/hardware/presets.cc";
constexpr std::string_view kQuestion = "owns_process()";
constexpr size_t kMostQuestions = 8;

bool is_letter(char c) { return std::islower(static_cast<unsigned char>(c)) != 0; }
bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }
bool is_in_name(char c) { return is_letter(c) || is_digit(c) || c == '-'; }

bool is_of_the_library(std::string_view path) {
  return path.starts_with("accelerate/") && is_cpp(path) && !is_test(path) &&
         !path.ends_with("_benchmark.cc");
}

// The line up to its comment.
std::string_view code_of(std::string_view line) {
  bool in_text = false;
  for (size_t i = 0; i + 1 < line.size(); ++i) {
    if (line[i] == '\\') {
      ++i;
    } else if (line[i] == '"') {
      in_text = !in_text;
    } else if (!in_text && line.substr(i, 2) == "//") {
      return line.substr(0, i);
    }
  }
  return line;
}

// Devices by name: texts of small letters and digits, some of each.
std::set<std::string> device_names(const File& presets) {
  std::set<std::string> names;
  for (std::string_view line : lines_of(presets.contents)) {
    line = code_of(line);
    for (size_t open = line.find('"'); open != line.npos;) {
      const size_t close = line.find('"', open + 1);
      if (close == line.npos) break;
      const std::string_view text = line.substr(open + 1, close - open - 1);
      if (std::ranges::all_of(text, is_in_name) && std::ranges::any_of(text, is_digit) &&
          std::ranges::any_of(text, is_letter)) {
        names.emplace(text);
      }
      open = line.find('"', close + 1);
    }
  }
  return names;
}

bool is_of_a_word(char c) { return is_in_name(c) || c == '_'; }

// Whether the text has the name as a word of its own.
bool has_name(std::string_view text, std::string_view name) {
  for (size_t at = text.find(name); at != text.npos; at = text.find(name, at + 1)) {
    const size_t end = at + name.size();
    const bool begins = at == 0 || !is_of_a_word(text[at - 1]);
    if (begins && (end == text.size() || !is_of_a_word(text[end]))) return true;
  }
  return false;
}

}  // namespace

Findings check_simulated_names(const std::vector<File>& files) {
  const auto presets = std::ranges::find(files, kPresetsPath, &File::path);
  if (presets == files.end()) return {};
  const std::set<std::string> names = device_names(*presets);
  Findings findings;
  for (const File& file : files) {
    // Help texts of options have examples, too.
    const bool is_example = file.path.starts_with("accelerate/examples/") ||
                            file.path.starts_with("accelerate/options/");
    if (is_example || !is_of_the_library(file.path)) continue;
    const Findings more = for_each_line(file, [&](std::string_view line) -> std::string {
      std::string code(code_of(line));
      std::ranges::transform(code, code.begin(), [](unsigned char c) { return std::tolower(c); });
      for (const std::string& name : names) {
        if (!has_name(code, name)) continue;
        return std::format("the simulator's device \"{}\": ask Runtime::device_has", name);
      }
      return "";
    });
    findings.insert(findings.end(), more.begin(), more.end());
  }
  return findings;
}

Findings check_process_questions(const std::vector<File>& files) {
  Findings places;
  for (const File& file : files) {
    if (!is_of_the_library(file.path)) continue;
    const Findings more = for_each_line(file, [](std::string_view line) -> std::string {
      const std::string_view code = code_of(line);
      const size_t at = code.find(kQuestion);
      const bool declares = code.find("bool owns_process() const") != code.npos;
      return at == code.npos || declares ? "" : std::string(kQuestion);
    });
    places.insert(places.end(), more.begin(), more.end());
  }
  if (places.size() <= kMostQuestions) return {};
  for (Finding& place : places) {
    place.message =
        std::format("{} is asked in {} places, more than {}: ask Runtime what is wanted", kQuestion,
                    places.size(), kMostQuestions);
  }
  return places;
}

}  // namespace accelerate::tidy
