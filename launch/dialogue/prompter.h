/// Questions to a person, one at a time: texts, numbers, yes or no, choices.
///
/// On a terminal a choice is a menu: arrow keys, digits or the beginning of its name move, Enter
/// takes, Esc leaves. Elsewhere it is its number or its name. An empty answer is the default. A bad
/// answer is explained and asked for again: by a person until it is good or Ctrl-C ends the
/// program, of other input three times in all. Errors:  kept, not returned: after three bad
/// answers, the end of input, Esc or Ctrl-C every further
///          question takes its default, and `status` has the error.
/// Threads: one.
/// Mirrors: accelerate commands/menu and commands/config/config_utils.py.
/// Differs: HF Accelerate repeats a question without limit also where no person answers, and in
///          places without a reason.
#pragma once

#include <cstdint>
#include <functional>
#include <istream>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace accelerate::launcher::dialogue {

class Prompter {
 public:
  /// Keeps both streams. `has_menu`: `in` is standard input and a terminal, from which nothing was
  /// read yet; it is not buffered from here on.
  Prompter(std::istream& in, std::ostream& out, bool has_menu);

  /// The reason why an answer is refused; OK for a good one.
  using Check = std::function<absl::Status(const std::string&)>;

  /// Without a default an answer is needed. A default is checked as every answer is.
  std::string ask_text(const std::string& question, const std::optional<std::string>& otherwise,
                       const Check& check = {});
  /// At least `least`.
  int64_t ask_number(const std::string& question, std::optional<int64_t> otherwise,
                     int64_t least = 0);
  bool ask_yes_no(const std::string& question, bool otherwise);
  /// Shows a question that is not asked, and why: "not in this version".
  void skip(const std::string& question, const std::string& why);
  /// The index of one of `choices`.
  size_t ask_choice(const std::string& question, const std::vector<std::string>& choices,
                    size_t otherwise = 0);

  const absl::Status& status() const { return status_; }

 private:
  bool read_line(const std::string& question, std::string& line);
  size_t ask_by_menu(const std::string& question, const std::vector<std::string>& choices,
                     size_t otherwise);
  size_t leave_menu(const std::string& question, size_t otherwise);
  void draw_menu(const std::vector<std::string>& choices, size_t selected);

  std::istream& in_;
  std::ostream& out_;
  const bool has_menu_;
  absl::Status status_;
};

}  // namespace accelerate::launcher::dialogue
