#include "launch/commands/commands.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "accelerate/base/version.h"
#include "accelerate/platform/environment.h"
#include "launch/settings/settings.h"

namespace accelerate::launcher::commands {
namespace {

constexpr int kLeastColumns = 60;
constexpr int kMostColumns = 100;
constexpr size_t kIndent = 2;
constexpr size_t kWidestName = 28;
constexpr char kSummary[] =
    "Accelerate for C++: starts training programs, here and on other machines.";
// The heading under which CLI11 puts options without a group.
constexpr char kNoGroup[] = "Options";

struct Entry {
  std::string name;   // "-h, --help"
  std::string value;  // "INT"
  std::string text;

  std::string heading() const {
    return value.empty() ? name : absl::StrCat(name, name.empty() ? "" : " ", value);
  }
};

struct Section {
  std::string title;
  std::vector<Entry> entries;
};

// CLI11 puts the texts of checks behind the type: "NAME:{a,b}", "N:INT in [1 - 3]". The choices are
// worth showing.
std::string value_of(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return "";
  const std::string type = option.get_type_name();
  const size_t open = type.find('{');
  if (open != std::string::npos) return type.substr(open, type.find('}', open) + 1 - open);
  // HOST:PORT is a type alone.
  const bool is_type_alone =
      std::ranges::any_of(settings::all_settings(), [&](const settings::Setting& row) {
        return row.value_name != nullptr && type == row.value_name;
      });
  return is_type_alone ? type : type.substr(0, type.find(':'));
}

Entry entry_of(const CLI::Option& option) {
  Entry entry{.text = option.get_description()};
  if (option.get_positional()) {
    entry.name = option.get_name(/*positional=*/true);
    const bool several = option.get_items_expected_max() > 1;
    if (several) entry.name += "...";
  } else {
    std::vector<std::string> names;
    for (const std::string& name : option.get_snames()) names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
    entry.name = absl::StrJoin(names, ", ");
  }
  entry.value = value_of(option);
  if (option.get_required()) absl::StrAppend(&entry.text, " (required)");
  return entry;
}

std::vector<Section> sections_of(const CLI::App& app) {
  Section positionals{.title = "Arguments"};
  Section others;
  std::vector<Section> sections;
  for (const CLI::Option* option : app.get_options()) {
    const std::string& group = option->get_group();
    if (group.empty()) continue;
    if (option->get_positional()) {
      positionals.entries.push_back(entry_of(*option));
    } else if (group == kNoGroup) {
      others.entries.push_back(entry_of(*option));
    } else {
      auto found = std::ranges::find(sections, group, &Section::title);
      if (found == sections.end()) found = sections.insert(found, {.title = group});
      found->entries.push_back(entry_of(*option));
    }
  }
  others.title = sections.empty() ? "Options" : "Other options";
  sections.push_back(std::move(others));
  sections.insert(sections.begin(), std::move(positionals));
  Section subcommands{.title = "Commands"};
  for (const CLI::App* sub : app.get_subcommands(nullptr)) {
    subcommands.entries.push_back({.name = sub->get_name(), .text = sub->get_description()});
  }
  sections.push_back(std::move(subcommands));
  std::erase_if(sections, [](const Section& section) { return section.entries.empty(); });
  return sections;
}

// Without the word "Usage: ".
std::string usage_of(const CLI::App& app) {
  std::string usage = app.get_usage();
  if (!usage.empty()) return usage.substr(absl::StartsWith(usage, "Usage: ") ? 7 : 0);
  std::string name = app.get_name();
  for (const CLI::App* at = app.get_parent(); at != nullptr; at = at->get_parent()) {
    name = absl::StrCat(at->get_name(), " ", name);
  }
  usage = absl::StrCat(name, " [OPTIONS]");
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional()) continue;
    const std::string word = entry_of(*option).name;
    absl::StrAppend(&usage, " ", option->get_required() ? word : absl::StrCat("[", word, "]"));
  }
  if (!app.get_subcommands(nullptr).empty()) absl::StrAppend(&usage, " [COMMAND]");
  return usage;
}

// Breaks `text` into lines of at most `columns`, at spaces.
std::vector<std::string> wrapped(absl::string_view text, size_t columns) {
  std::vector<std::string> lines(1);
  for (const absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (!lines.back().empty() && lines.back().size() + 1 + word.size() > columns) {
      lines.emplace_back();
    }
    absl::StrAppend(&lines.back(), lines.back().empty() ? "" : " ", word);
  }
  return lines;
}

void append(std::string& help, const std::vector<Section>& sections, int columns) {
  size_t width = 0;
  for (const Section& section : sections) {
    for (const Entry& entry : section.entries) {
      if (entry.heading().size() <= kWidestName) width = std::max(width, entry.heading().size());
    }
  }
  const size_t text_at = kIndent + width + 2;
  for (const Section& section : sections) {
    absl::StrAppend(&help, "\n", section.title, ":\n");
    for (const Entry& entry : section.entries) {
      std::string line = std::string(kIndent, ' ') + entry.heading();
      if (line.size() + 2 > text_at && !entry.text.empty()) {
        absl::StrAppend(&help, line, "\n");
        line.clear();
      }
      for (const std::string& text : wrapped(entry.text, columns - text_at)) {
        line.resize(std::max(line.size(), text_at), ' ');
        absl::StrAppend(&help, absl::StripTrailingAsciiWhitespace(line + text), "\n");
        line.clear();
      }
    }
  }
}

std::vector<Section> command_sections() {
  std::vector<Section> sections;
  for (const CommandGroup& group : command_groups()) {
    Section& section = sections.emplace_back(Section{.title = group.title});
    for (const Command& command : group.commands) {
      section.entries.push_back({.name = command.name, .text = command.summary});
    }
  }
  sections.push_back({.title = "Options",
                      .entries = {{.name = "-h, --help", .text = "show this help"},
                                  {.name = "--version",
                                   .text = "show the versions of this program, of LibTorch and the "
                                           "backends that programs of this installation have"}}});
  return sections;
}

// A line of roff text. A dash is one that can be copied, and a dot at the front does not begin a
// request.
std::string roff(absl::string_view text) {
  const std::string escaped = absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}});
  const bool is_request = absl::StartsWith(escaped, ".") || absl::StartsWith(escaped, "'");
  return absl::StrCat(is_request ? "\\&" : "", escaped);
}

std::string manual_head(const std::string& name, absl::string_view summary,
                        absl::string_view usage) {
  absl::string_view sentence = absl::StripAsciiWhitespace(summary);
  absl::ConsumeSuffix(&sentence, ".");
  return absl::StrCat(".TH ", absl::AsciiStrToUpper(name), " 1 \"\" \"accelerate ",
                      kAccelerateVersion, "\" \"Accelerate for C++\"\n.SH NAME\n", roff(name),
                      " \\- ", roff(sentence), "\n.SH SYNOPSIS\n", roff(usage), "\n");
}

void append_manual(std::string& page, const std::vector<Section>& sections) {
  for (const Section& section : sections) {
    absl::StrAppend(&page, ".SH ", absl::AsciiStrToUpper(roff(section.title)), "\n");
    for (const Entry& entry : section.entries) {
      absl::StrAppend(&page, ".TP\n\\fB", roff(entry.name), "\\fR");
      if (!entry.value.empty()) absl::StrAppend(&page, " \\fI", roff(entry.value), "\\fR");
      absl::StrAppend(&page, "\n", roff(entry.text), "\n");
    }
  }
}

std::string manual_name(absl::string_view command) {
  return absl::StrCat("accelerate", command.empty() ? "" : "-", command);
}

std::string command_page(const Command& command) {
  CLI::App app(command.summary, absl::StrCat("accelerate ", command.name));
  const RunCommand ignored = command.declare(app);
  if (command.name == absl::string_view(kLaunch.name)) settings::show_flags(app);
  std::string page = manual_head(manual_name(command.name), command.summary, usage_of(app));
  append_manual(page, sections_of(app));
  for (const CLI::App* sub : app.get_subcommands(nullptr)) {
    std::vector<Section> sections = sections_of(*sub);
    for (Section& section : sections) {
      section.title = absl::StrCat(section.title, " of ", sub->get_name());
    }
    append_manual(page, sections);
  }
  if (const std::string notes = app.get_footer(); !notes.empty()) {
    absl::StrAppend(&page, ".SH NOTES\n");
    for (const absl::string_view line : absl::StrSplit(notes, '\n')) {
      absl::StrAppend(&page, roff(line), "\n");
    }
  }
  absl::StrAppend(&page, ".SH SEE ALSO\n.BR accelerate (1)\n");
  return page;
}

std::string overview_page() {
  std::string page = manual_head(manual_name(""), kSummary, "accelerate COMMAND [OPTIONS] ...");
  append_manual(page, command_sections());
  absl::StrAppend(&page, ".SH SEE ALSO\n");
  std::vector<std::string> others;
  for (const Command& command : all_commands()) {
    others.push_back(absl::StrCat("\\fB", roff(manual_name(command.name)), "\\fR(1)"));
  }
  absl::StrAppend(&page, absl::StrJoin(others, ",\n"), "\n");
  return page;
}

}  // namespace

int help_columns() {
  int columns = 0;
  winsize size{};
  if (!absl::SimpleAtoi(Environment().get_or("COLUMNS", ""), &columns)) {
    const bool is_terminal = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    columns = is_terminal ? size.ws_col : kMostColumns;
  }
  return std::clamp(columns, kLeastColumns, kMostColumns);
}

std::string help_text(const CLI::App& app, int columns) {
  for (const CLI::App* parsed : app.get_subcommands()) return help_text(*parsed, columns);
  std::string help = absl::StrCat(absl::StrJoin(wrapped(app.get_description(), columns), "\n"),
                                  "\nUsage: ", usage_of(app), "\n");
  append(help, sections_of(app), columns);
  if (const std::string notes = app.get_footer(); !notes.empty()) {
    absl::StrAppend(&help, "\n");
    for (const absl::string_view line : absl::StrSplit(notes, '\n')) {
      absl::StrAppend(&help, absl::StrJoin(wrapped(line, columns), "\n"), "\n");
    }
  }
  return help;
}

std::string overview_text(int columns) {
  std::string help = absl::StrCat(absl::StrJoin(wrapped(kSummary, columns), "\n"),
                                  "\nUsage: accelerate COMMAND [OPTIONS] ...\n");
  append(help, command_sections(), columns);
  absl::StrAppend(&help, "\naccelerate COMMAND --help tells more.\n");
  return help;
}

std::vector<ManualPage> manual_pages() {
  std::vector<ManualPage> pages = {{absl::StrCat(manual_name(""), ".1"), overview_page()}};
  for (const Command& command : all_commands()) {
    pages.push_back({absl::StrCat(manual_name(command.name), ".1"), command_page(command)});
  }
  return pages;
}

}  // namespace accelerate::launcher::commands
