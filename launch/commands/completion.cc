// `accelerate completion bash|zsh|fish`: a script that completes commands, options and values.
//
//     source <(accelerate completion bash)
// The script is made of the list of commands and of what each declares; the program that a launch
// starts, and all that follows it, complete as files.

#include <vector>

#include <CLI/CLI.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "accelerate/base/status.h"
#include "launch/commands/commands.h"
#include "launch/settings/schema.h"

namespace accelerate::launcher::commands {
namespace {

constexpr char kName[] = "completion";

struct CompletedOption {
  std::string name;  // with its dashes
  std::string help;
  bool takes_value = false;
  std::vector<std::string> choices;
};

struct CompletedCommand {
  std::string name;
  std::string summary;
  std::vector<CompletedOption> options;
  std::vector<std::string> words;  // its own commands
};

// The values of an option: those of the setting that it is, or of its check, "{a,b}".
std::vector<std::string> choices_of(const CLI::Option& option, const std::string& name) {
  if (const settings::Setting* row = settings::find_flag(name);
      row != nullptr && row->choices != nullptr) {
    const std::vector<absl::string_view> choices = row->choice_list();
    return {choices.begin(), choices.end()};
  }
  const std::string type = option.get_type_name();
  const size_t open = type.find('{');
  const size_t close = type.find('}', open);
  if (open == type.npos || close == type.npos) return {};
  return absl::StrSplit(type.substr(open + 1, close - open - 1), ',');
}

CompletedCommand completed(const Command& command) {
  CLI::App app;
  const RunCommand ignored = command.declare(app);
  CompletedCommand result{.name = command.name, .summary = command.summary};
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      CompletedOption& entry = result.options.emplace_back();
      entry.name = absl::StrCat("--", name);
      entry.help = option->get_description();
      entry.takes_value = option->get_items_expected_max() > 0;
      if (entry.takes_value) entry.choices = choices_of(*option, name);
    }
    if (!option->get_positional()) continue;
    for (std::string& word : choices_of(*option, option->get_name())) {
      result.words.push_back(std::move(word));
    }
  }
  for (const CLI::App* sub : app.get_subcommands(nullptr)) result.words.push_back(sub->get_name());
  return result;
}

// Between single quotes, for all three shells. A quote or a backslash is escaped outside of the
// quotes, because fish reads backslashes within them and the others do not.
std::string in_quotes(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}, {"\\", "'\\\\'"}}), "'");
}

// A function in bash that fills COMPREPLY. After the first word that is neither an option nor an
// option's value the words are a program's.
std::string bash_script(const std::vector<CompletedCommand>& commands) {
  std::vector<std::string> names;
  std::string options;
  std::string values;
  std::string flags;
  for (const CompletedCommand& command : commands) {
    names.push_back(command.name);
    std::vector<std::string> words;
    for (const CompletedOption& option : command.options) {
      words.push_back(option.name);
      const std::string flag = in_quotes(absl::StrCat(command.name, " ", option.name));
      if (option.takes_value) {
        absl::StrAppend(&values, "    ", flag,
                        ") words=", in_quotes(absl::StrJoin(option.choices, " ")), " ;;\n");
      } else {
        absl::StrAppend(&flags, flags.empty() ? "" : "|", flag);
      }
    }
    words.insert(words.end(), command.words.begin(), command.words.end());
    absl::StrAppend(&options, "    ", command.name,
                    ") words=", in_quotes(absl::StrJoin(words, " ")), " ;;\n");
  }
  return absl::StrCat(R"(# accelerate: completion for bash
_accelerate() {
  local cur=${COMP_WORDS[COMP_CWORD]} at=2 words= value=
  local command=${COMP_WORDS[1]}
  case ${COMP_WORDS[0]##*/} in
    accelerate-*) command=${COMP_WORDS[0]##*/accelerate-}; command=${command#accelerate-}; at=1 ;;
  esac
  COMPREPLY=()
  if ((COMP_CWORD < at)); then
    COMPREPLY=($(compgen -W )",
                      in_quotes(absl::StrJoin(names, " ")), R"( -- "$cur"))
    return
  fi
  # An option's name may be spelt with - or _.
  _accelerate_name() { local dashes=${1%%[!-]*}; REPLY=${1#"$dashes"}; REPLY=$dashes${REPLY//-/_}; }
  while ((at < COMP_CWORD)); do
    _accelerate_name "${COMP_WORDS[at]}"
    case "$command $REPLY" in
      )",
                      flags, R"() at=$((at + 1)) ;;
      *' '-*=*) at=$((at + 1)) ;;
      *' '-*) value=$REPLY; at=$((at + 2)) ;;
      *) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    esac
  done
  if ((at > COMP_CWORD)); then
    case "$command $value" in
)",
                      absl::StrReplaceAll(values, {{"    '", "      '"}}), R"(    esac
    if [[ -n $words ]]; then
      COMPREPLY=($(compgen -W "$words" -- "$cur"))
    else
      COMPREPLY=($(compgen -f -- "$cur"))
    fi
    return
  fi
  case $command in
)",
                      options, R"(  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
  [[ $cur == -* ]] || COMPREPLY+=($(compgen -f -- "$cur"))
}
complete -o filenames -F _accelerate accelerate )",
                      absl::StrJoin(link_names(), " "), "\n");
}

std::string zsh_script(const std::vector<CompletedCommand>& commands) {
  std::string described;
  std::string cases;
  for (const CompletedCommand& command : commands) {
    absl::StrAppend(&described, "    ", in_quotes(absl::StrCat(command.name, ":", command.summary)),
                    "\n");
    std::vector<std::string> specs;
    for (const CompletedOption& option : command.options) {
      const std::string help =
          absl::StrReplaceAll(option.help, {{"[", "("}, {"]", ")"}, {":", ","}, {"\n", " "}});
      const std::string action =
          !option.takes_value ? ""
          : option.choices.empty()
              ? ":value:_files"
              : absl::StrCat(":value:(", absl::StrJoin(option.choices, " "), ")");
      specs.push_back(in_quotes(absl::StrCat(option.name, "[", help, "]", action)));
    }
    specs.push_back(
        command.words.empty()
            ? "'*::file:_files'"
            : in_quotes(absl::StrCat("1:word:(", absl::StrJoin(command.words, " "), ")")));
    absl::StrAppend(&cases, "    ", command.name, ") _arguments ", absl::StrJoin(specs, " "),
                    " ;;\n");
  }
  return absl::StrCat(R"(#compdef accelerate )", absl::StrJoin(link_names(), " "), R"(
# accelerate: completion for zsh
_accelerate() {
  local command=$words[2]
  local -a names
  names=(
)",
                      described, R"(  )
  case ${words[1]:t} in
    accelerate-*) command=${${words[1]:t}#accelerate-} ;;
    *)
      if ((CURRENT == 2)); then
        _describe command names
        return
      fi
      shift words
      ((CURRENT--))
      ;;
  esac
  case $command in
)",
                      cases, R"(  esac
}
# In a folder of $fpath this file is the function's body; otherwise it was sourced.
if [[ ${funcstack[1]-} == _accelerate ]]; then
  _accelerate "$@"
else
  compdef _accelerate accelerate )",
                      absl::StrJoin(link_names(), " "), "\nfi\n");
}

std::string fish_script(const std::vector<CompletedCommand>& commands) {
  std::string script = "# accelerate: completion for fish\n";
  for (const CompletedCommand& command : commands) {
    absl::StrAppend(&script, "complete -c accelerate -n __fish_use_subcommand -xa ",
                    in_quotes(command.name), " -d ", in_quotes(command.summary), "\n");
    const std::string in_command =
        absl::StrCat("-n ", in_quotes(absl::StrCat("__fish_seen_subcommand_from ", command.name)));
    for (const std::string& word : command.words) {
      absl::StrAppend(&script, "complete -c accelerate ", in_command, " -xa ", in_quotes(word),
                      "\n");
    }
    for (const CompletedOption& option : command.options) {
      const std::string value =
          !option.takes_value ? ""
          : option.choices.empty()
              ? " -r"
              : absl::StrCat(" -xa ", in_quotes(absl::StrJoin(option.choices, " ")));
      absl::StrAppend(&script, "complete -c accelerate ", in_command, " -l ", option.name.substr(2),
                      value, " -d ", in_quotes(option.help), "\n");
    }
  }
  for (const absl::string_view link : link_names()) {
    absl::StrAppend(&script, "complete -c ", link, " -w ",
                    in_quotes(absl::StrCat("accelerate ", link.substr(sizeof("accelerate")))),
                    "\n");
  }
  return script;
}

int run(const std::string& shell, Invocation& invocation) {
  const absl::StatusOr<std::string> script = completion_script(shell, all_commands());
  if (!script.ok()) return fail(invocation, kName, script.status(), kExitBadCommandLine);
  invocation.out << *script;
  return finish(invocation);
}

void declare(CLI::App& app, std::string& shell) {
  app.footer("In bash: source <(accelerate completion bash)");
  add_value(app, "shell", shell, "", "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
}

}  // namespace

absl::StatusOr<std::string> completion_script(absl::string_view shell,
                                              absl::Span<const Command> commands) {
  std::vector<CompletedCommand> all;
  for (const Command& command : commands) all.push_back(completed(command));
  if (shell == "bash") return bash_script(all);
  if (shell == "zsh") return zsh_script(all);
  if (shell == "fish") return fish_script(all);
  return invalid("no completion for \"", shell, "\"; there is one for bash, zsh and fish");
}

const Command kCompletion = {kName, "Print a script for the shell's completion.",
                             with_options<declare, run>};

}  // namespace accelerate::launcher::commands
