#include "launch/dialogue/prompter.h"

#include <poll.h>
#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include <cctype>
#include <cstdio>
#include <iostream>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "accelerate/base/message_text.h"
#include "accelerate/base/status.h"
#include "launch/settings/schema.h"

namespace accelerate::launcher::dialogue {
namespace {

constexpr int kTries = 3;

// How the terminal was, for the handler.
termios terminal_before = {};

void restore_and_end(int signal) {
  tcsetattr(STDIN_FILENO, TCSANOW, &terminal_before);
  raise(signal);  // Its own action again, once this returns.
}

// Reads keys one by one without echo during its lifetime; has no effect without a terminal.
class RawTerminal {
 public:
  RawTerminal() : is_raw_(tcgetattr(STDIN_FILENO, &terminal_before) == 0) {
    if (!is_raw_) return;
    struct sigaction end = {};
    end.sa_handler = &restore_and_end;
    end.sa_flags = SA_RESETHAND;
    for (size_t i = 0; i < std::size(kEnds); ++i) {
      sigaction(kEnds[i], nullptr, &actions_before_[i]);
      if (actions_before_[i].sa_handler == SIG_DFL) sigaction(kEnds[i], &end, nullptr);
    }
    termios raw = terminal_before;
    // Ctrl-C becomes a key, so that the terminal is always set back.
    raw.c_lflag &= ~(ICANON | ECHO | ISIG);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
  }
  ~RawTerminal() {
    if (!is_raw_) return;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &terminal_before);
    for (size_t i = 0; i < std::size(kEnds); ++i) sigaction(kEnds[i], &actions_before_[i], nullptr);
  }

 private:
  static constexpr int kEnds[] = {SIGTERM, SIGHUP};

  const bool is_raw_;
  struct sigaction actions_before_[std::size(kEnds)] = {};
};

// The rest of a key's escape sequence comes at once, also over a slow connection.
constexpr int kEscapeMilliseconds = 100;

// Whether a key follows: the terminal has it, or the stream of a test.
bool has_next_key(std::istream& in) {
  if (in.rdbuf()->in_avail() > 0) return true;
  pollfd terminal = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  return &in == &std::cin && poll(&terminal, 1, kEscapeMilliseconds) == 1;
}

constexpr int kEscapeKey = -1;

// The key that begins with Esc: the letter of an arrow in ESC [ ... A or ESC O A, kEscapeKey for
// Esc itself, 0 for others.
int key_after_escape(std::istream& in) {
  if (!has_next_key(in)) return kEscapeKey;
  if (in.peek() != '[' && in.peek() != 'O') return 0;
  in.get();
  // Digits and semicolons encode modifier keys.
  while (in.peek() >= 0x20 && in.peek() < 0x40) in.get();
  return in.peek() >= 0x40 ? in.get() : 0;
}

// A choice by its name in any case, its number, or a beginning that no other has; npos for none.
size_t find_choice(const std::vector<std::string>& choices, absl::string_view answer) {
  size_t found = std::string::npos;
  int beginnings = 0;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (absl::EqualsIgnoreCase(choices[i], answer)) return i;
    if (!absl::StartsWithIgnoreCase(choices[i], answer)) continue;
    found = i;
    ++beginnings;
  }
  size_t number = 0;
  if (absl::SimpleAtoi(answer, &number) && number < choices.size()) return number;
  return beginnings == 1 ? found : std::string::npos;
}

// Choices get their index in front, unless the choices are numbers themselves.
std::string label(const std::vector<std::string>& choices, size_t index) {
  int64_t ignored = 0;
  return absl::StrCat(absl::SimpleAtoi(choices[index], &ignored) ? "" : absl::StrCat(index, "  "),
                      choices[index]);
}

// The first choice that begins with what was typed into the menu, else the one of that number; npos
// for none.
size_t find_typed(const std::vector<std::string>& choices, const std::string& typed) {
  for (size_t i = 0; i < choices.size(); ++i) {
    if (absl::StartsWithIgnoreCase(choices[i], typed)) return i;
  }
  size_t number = 0;
  const bool is_number = absl::SimpleAtoi(typed, &number) && number < choices.size();
  return is_number ? number : std::string::npos;
}

}  // namespace

// An Esc of its own is told from the beginning of an arrow key by what the terminal has next, which
// must not be in a buffer then.
Prompter::Prompter(std::istream& in, std::ostream& out, bool has_menu)
    : in_(in), out_(out), has_menu_(has_menu) {
  if (has_menu && &in == &std::cin) setvbuf(stdin, nullptr, _IONBF, 0);
}

void Prompter::skip(const std::string& question, const std::string& why) {
  if (status_.ok()) out_ << question << " (" << why << ")" << std::endl;
}

bool Prompter::read_line(const std::string& question, std::string& line) {
  out_ << question << std::flush;
  if (std::getline(in_, line)) {
    line = std::string(absl::StripAsciiWhitespace(line));
    return true;
  }
  out_ << std::endl;
  status_ = absl::OutOfRangeError(
      absl::StrCat("the input ended at the question \"", absl::StripAsciiWhitespace(question),
                   "\"; --set KEY=VALUE writes a configuration without questions"));
  return false;
}

std::string Prompter::ask_text(const std::string& question,
                               const std::optional<std::string>& otherwise, const Check& check) {
  const std::string prompt = absl::StrCat(
      question, otherwise && !otherwise->empty() ? absl::StrCat(" [", *otherwise, "]") : "", ": ");
  for (int tries = 1; status_.ok(); ++tries) {
    std::string answer;
    if (!read_line(prompt, answer)) break;
    if (answer.empty() && otherwise && otherwise->empty()) return "";
    absl::Status verdict = absl::OkStatus();
    if (answer.empty() && !otherwise) {
      verdict = absl::InvalidArgumentError("an answer is needed");
    } else {
      if (answer.empty()) answer = *otherwise;
      if (check) verdict = check(answer);
      if (!settings::is_utf8(answer)) {
        verdict = absl::InvalidArgumentError("the answer is not UTF-8");
      }
    }
    if (verdict.ok()) return answer;
    out_ << "  " << verdict.message() << std::endl;
    if (tries < kTries || has_menu_) continue;
    status_ = absl::FailedPreconditionError(absl::StrCat(
        "no usable answer in ", kTries, " tries to \"", question, "\": ", verdict.message()));
  }
  return otherwise.value_or("");
}

int64_t Prompter::ask_number(const std::string& question, std::optional<int64_t> otherwise,
                             int64_t least) {
  const Check check = [least](const std::string& answer) {
    int64_t number = 0;
    if (absl::SimpleAtoi(answer, &number) && number >= least) return absl::OkStatus();
    return invalid("expected a whole number of at least ", least, ", not \"", answer, "\"");
  };
  std::optional<std::string> text;
  if (otherwise) text = absl::StrCat(*otherwise);
  int64_t number = otherwise.value_or(least);
  (void)absl::SimpleAtoi(ask_text(question, text, check), &number);
  return number;
}

bool Prompter::ask_yes_no(const std::string& question, bool otherwise) {
  const Check check = [](const std::string& answer) {
    if (settings::parse_bool(answer).ok()) return absl::OkStatus();
    return invalid("expected yes or no, not \"", answer, "\"");
  };
  return *settings::parse_bool(ask_text(question, otherwise ? "yes" : "no", check));
}

size_t Prompter::ask_choice(const std::string& question, const std::vector<std::string>& choices,
                            size_t otherwise) {
  if (has_menu_) return ask_by_menu(question, choices, otherwise);
  if (!status_.ok()) return otherwise;
  out_ << question << "\n";
  for (size_t i = 0; i < choices.size(); ++i) out_ << "  " << label(choices, i) << "\n";
  const Check check = [&](const std::string& answer) {
    if (find_choice(choices, answer) != std::string::npos) return absl::OkStatus();
    return invalid("expected a number from 0 to ", choices.size() - 1, " or one of the names, ",
                   "not \"", answer, "\"", did_you_mean(answer, choices));
  };
  const size_t found = find_choice(choices, ask_text("Number or name", choices[otherwise], check));
  return found == std::string::npos ? otherwise : found;
}

void Prompter::draw_menu(const std::vector<std::string>& choices, size_t selected) {
  for (size_t i = 0; i < choices.size(); ++i) {
    out_ << "\x1b[2K" << (i == selected ? "-> " : "   ") << label(choices, i) << "\r\n";
  }
  out_ << std::flush;
}

size_t Prompter::leave_menu(const std::string& question, size_t otherwise) {
  status_ = absl::CancelledError(
      absl::StrCat("stopped at the question \"", question, "\"; nothing is written"));
  return otherwise;
}

size_t Prompter::ask_by_menu(const std::string& question, const std::vector<std::string>& choices,
                             size_t otherwise) {
  if (!status_.ok()) return otherwise;
  const RawTerminal raw;
  const size_t count = choices.size();
  const std::string to_first_line = absl::StrCat("\x1b[", count, "A\r");
  out_ << question << " (arrow keys, number or name; Enter takes, Esc leaves)\r\n";
  size_t selected = otherwise;
  draw_menu(choices, selected);
  std::string typed;  // since the last arrow key
  while (true) {
    const int key = in_.get();
    if (key == '\n' || key == '\r') break;
    if (key == std::istream::traits_type::eof() || key == 3 || key == 4) {
      return leave_menu(question, otherwise);
    }
    if (key == 27) {
      typed.clear();
      const int arrow = key_after_escape(in_);
      if (arrow == kEscapeKey) return leave_menu(question, otherwise);
      if (arrow == 'A') selected = (selected + count - 1) % count;
      if (arrow == 'B') selected = (selected + 1) % count;
    } else if (key == 127 || key == 8) {
      typed.clear();
    } else if (std::isprint(key)) {
      typed += static_cast<char>(key);
      // It may be the beginning of another one.
      if (find_typed(choices, typed) == std::string::npos) typed = static_cast<char>(key);
      const size_t found = find_typed(choices, typed);
      if (found != std::string::npos) selected = found;
    }
    out_ << to_first_line;
    draw_menu(choices, selected);
  }
  // The menu gives way to the answer.
  out_ << "\x1b[" << count + 1 << "A\r\x1b[J" << question << ": " << choices[selected] << "\r\n"
       << std::flush;
  return selected;
}

}  // namespace accelerate::launcher::dialogue
