#include "launch/settings/settings.h"

#include <algorithm>
#include <iterator>

#include <CLI/CLI.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "accelerate/base/message_text.h"
#include "accelerate/base/status.h"
#include "launch/process/process_plan.h"
#include "launch/settings/schema.h"

namespace accelerate::launcher::settings {
namespace {

// `--num-processes=2` becomes `--num_processes`; the value stays out of it.
std::string canonical_name(absl::string_view word) {
  absl::string_view name = word.substr(0, word.find('='));
  const size_t dashes = std::min(name.find_first_not_of('-'), name.size());
  return absl::StrCat(name.substr(0, dashes),
                      absl::StrReplaceAll(name.substr(dashes), {{"-", "_"}}));
}

absl::Status unknown_option(absl::string_view word, absl::string_view name) {
  std::vector<std::string> names;
  for (const Setting& row : all_settings()) {
    if (row.has_flag()) names.push_back(row.flag_name());
  }
  return invalid("unknown option ", word,
                 absl::StartsWith(name, "--") ? did_you_mean(name.substr(2), names, "--") : "",
                 "; see --help (options of the program go after its name)");
}

const char* value_name(const Setting& row) {
  // By ValueType.
  constexpr const char* kNames[] = {"",     "BOOL",     "INT",           "FLOAT",
                                    "TEXT", "TEXT ...", "BOOL,BOOL,BOOL"};
  return row.value_name != nullptr ? row.value_name : kNames[static_cast<size_t>(row.type)];
}

std::string help_of(const Setting& row) {
  std::string help = row.help;
  if (row.choices != nullptr) {
    absl::StrAppend(&help, " (", absl::StrReplaceAll(row.choices, {{"|", ", "}}), ")");
  }
  if (row.default_value != nullptr && row.type != ValueType::kFlag) {
    absl::StrAppend(&help, " [", row.default_value, "]");
  }
  if (!row.works()) absl::StrAppend(&help, "; not in this version");
  return help;
}

void declare_flag(CLI::App& app, const Setting& row, TypedFlags& typed) {
  std::string names = absl::StrCat("--", row.flag_name());
  if (row.other_flag != nullptr) absl::StrAppend(&names, ",--", row.other_flag);
  if (row.short_name != 0) absl::StrAppend(&names, ",-", std::string(1, row.short_name));
  const std::string name = row.name;
  CLI::Option* option = nullptr;
  if (row.type == ValueType::kFlag) {
    option = app.add_flag_function(
        names, [&typed, name](int64_t) { typed[name] = {"true"}; }, help_of(row));
  } else {
    option = app.add_option_function<std::vector<std::string>>(
        names, [&typed, name](const std::vector<std::string>& values) { typed[name] = values; },
        help_of(row));
    // split_launch_words hands over one word a flag, and the next word is another flag.
    option->type_name(value_name(row))->allow_extra_args(false);
    if (row.type == ValueType::kTexts) {
      option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    } else {
      option->take_last();
    }
    option->expected(1);
  }
  if (row.negated_flag != nullptr) {
    app.add_flag_function(
        absl::StrCat("--", row.negated_flag), [&typed, name](int64_t) { typed[name] = {"false"}; },
        absl::StrCat("the opposite of --", row.flag_name()));
  }
}

// Puts the row's flags under their heading, or out of the help: CLI11 leaves out groups without a
// name.
void show_flag(CLI::App& app, const Setting& row, bool is_shown) {
  const char* group = is_shown ? group_title(row.group) : "";
  app.get_option(absl::StrCat("--", row.flag_name()))->group(group);
  if (row.negated_flag != nullptr) {
    app.get_option(absl::StrCat("--", row.negated_flag))->group(group);
  }
}

constexpr char kHelp[] = "--help";
constexpr char kHelpAll[] = "--help_all";

// The options that --print_config=all stands for.
constexpr const char* kPrintAll[] = {"--print_config", "--print_config_all"};

absl::StatusOr<Group> group_of(absl::string_view name) {
  if (const auto group = value_of<Group>({name.data(), name.size()})) return *group;
  const std::vector<std::string> names = texts<Group>();
  return invalid(kHelp, "=", name, ": expected all, ", absl::StrJoin(names, ", "),
                 did_you_mean(name, names));
}

// Whether ranks get the setting: child_environment hands on those of an engine that is on.
bool reaches_ranks(const Settings& settings, const Setting& row) {
  switch (row.group) {
    case Group::kRanks: return row.is_for_ranks;
    case Group::kCompile: return true;
    case Group::kFp8: return settings.text("mixed_precision") == "fp8";
    case Group::kFsdp: return settings.flag("use_fsdp");
    case Group::kDeepSpeed: return settings.flag("use_deepspeed");
    case Group::kParallelism: return settings.flag("use_parallelism_config");
    case Group::kMegatron: return settings.flag("use_megatron_lm");
    default: return false;
  }
}

std::string escaped(absl::string_view text) { return absl::StrReplaceAll(text, {{"|", "\\|"}}); }

}  // namespace

absl::StatusOr<LaunchWords> split_launch_words(const CLI::App& app,
                                               absl::Span<const std::string> args) {
  LaunchWords words;
  size_t next = 0;
  while (next < args.size() && args[next].size() > 1 && args[next][0] == '-') {
    const std::string& word = args[next++];
    if (word == "--") break;
    const std::string name = canonical_name(word);
    const CLI::Option* option = app.get_option_no_throw(name);
    if (option == nullptr) return unknown_option(word, name);
    const size_t equals = word.find('=');
    const bool has_value = equals != std::string::npos;
    const std::string given = has_value ? word.substr(equals + 1) : "";
    if (name == kPrintAll[0] && given == "all") {
      words.options.insert(words.options.end(), std::begin(kPrintAll), std::end(kPrintAll));
      continue;
    }
    if (name == kHelp && !given.empty()) {
      if (given != "all") {
        ACCELERATE_ASSIGN_OR_RETURN(words.help_group, group_of(given));
      }
      words.options.push_back(given == "all" ? kHelpAll : kHelp);
      continue;
    }
    if (option->get_items_expected_max() == 0) {
      if (has_value) return invalid(name, " takes no value");
      words.options.push_back(name);
      continue;
    }
    const std::string value = has_value || next == args.size() ? given : args[next++];
    if (value.empty()) return invalid(name, " needs a value");
    const Setting* row = find_flag(absl::string_view(name).substr(name.find_first_not_of('-')));
    words.options.push_back(absl::StrCat("--", row->flag_name(), "=", value));
  }
  words.program.assign(args.begin() + next, args.end());
  return words;
}

void declare_flags(CLI::App& app, TypedFlags& typed) {
  app.set_help_flag(absl::StrCat("-h,", kHelp),
                    "show the common options; --help=all: all of them; --help=fsdp: a group's");
  app.set_help_all_flag(kHelpAll, "show all options")->group("");
  for (const Setting& row : all_settings()) {
    if (!row.has_flag()) continue;
    declare_flag(app, row, typed);
    show_flag(app, row, row.is_common);
  }
}

void show_flags(CLI::App& app, std::optional<Group> group) {
  for (const Setting& row : all_settings()) {
    if (row.has_flag()) show_flag(app, row, !group || row.group == *group);
  }
}

std::vector<std::string> typed_words(const TypedFlags& typed) {
  std::vector<std::string> words;
  for (const Setting& row : all_settings()) {
    const auto found = typed.find(row.name);
    if (found == typed.end()) continue;
    for (const std::string& value : found->second) {
      if (row.type != ValueType::kFlag) {
        words.push_back(absl::StrCat("--", row.flag_name(), "=", value));
      } else {
        words.push_back(absl::StrCat("--", value == "true" ? row.flag_name() : row.negated_flag));
      }
    }
  }
  return words;
}

std::vector<std::string> settings_words(const Settings& settings,
                                        absl::Span<const std::string> environment) {
  std::vector<std::string> words;
  for (const Setting& row : all_settings()) {
    if (!row.has_flag() || !settings.is_set(row.name) || !reaches_ranks(settings, row)) continue;
    const bool has_variable =
        row.variable_is_read &&
        process::find_in_environment(environment, row.variable_name()).has_value();
    // One without a default differs from one that is not set.
    const bool is_usual = row.default_value != nullptr && settings.is_default(row.name);
    if (is_usual && !has_variable) continue;
    const std::string flag = absl::StrCat("--", row.flag_name());
    if (row.type == ValueType::kFlag) {
      if (settings.flag(row.name)) words.push_back(flag);
      continue;
    }
    for (const std::string& text : settings.texts(row.name)) {
      if (!text.empty()) words.insert(words.end(), {flag, text});
    }
  }
  return words;
}

std::string options_markdown() {
  std::string text;
  const Setting* last = nullptr;
  for (const Setting& row : all_settings()) {
    if (last == nullptr || last->group != row.group) {
      absl::StrAppend(&text, last == nullptr ? "" : "\n", "## ", group_title(row.group),
                      "\n\n| flag | key in the file | variable | value | default | meaning |\n"
                      "| --- | --- | --- | --- | --- | --- |\n");
    }
    last = &row;
    std::string flag = row.has_flag() ? absl::StrCat("`--", row.flag_name(), "`") : "";
    if (row.other_flag != nullptr) absl::StrAppend(&flag, " `--", row.other_flag, "`");
    if (row.short_name != 0) absl::StrAppend(&flag, " `-", std::string(1, row.short_name), "`");
    if (row.negated_flag != nullptr) absl::StrAppend(&flag, " `--", row.negated_flag, "`");
    std::string key;
    if (row.has_key()) key = absl::StrCat("`", row.key_name(), "`");
    if (const SectionName* section = find_section(row.section); section && row.has_key()) {
      key = absl::StrCat("`", section->key, ": ", row.name, "`");
    }
    const std::string variable = row.variable_name();
    std::string value = row.choices != nullptr ? absl::StrReplaceAll(row.choices, {{"|", ", "}})
                                               : std::string(value_name(row));
    const bool has_default = row.default_value != nullptr && row.type != ValueType::kFlag;
    absl::StrAppend(&text, "| ", flag, " | ", key, " | ",
                    variable.empty() ? "" : absl::StrCat("`", variable, "`"), " | ", escaped(value),
                    " | ", has_default ? row.default_value : "", " | ", escaped(row.help),
                    row.origin == SettingOrigin::kOurs ? " (ours)" : "",
                    row.since == nullptr ? "" : absl::StrCat(" (since ", row.since, ")"),
                    row.works() ? "" : "; **not in this version**", " |\n");
  }
  return text;
}

}  // namespace accelerate::launcher::settings
