/// Words, numbers and durations of a text, from left to right, with one error that points at a
/// character.
///
/// Each step returns false, and keeps the problem, where the text is something else; the first
/// problem counts. Steps skip blanks before what they read, but not the ends of lines.
/// Threads: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"

namespace accelerate::simulator {

struct TimeUnit {
  const char* name;
  int64_t ns;
};
/// The largest first.
inline constexpr TimeUnit kTimeUnits[] = {
    {"h", 3'600'000'000'000}, {"m", 60'000'000'000}, {"s", 1'000'000'000},
    {"ms", 1'000'000},        {"us", 1'000},         {"ns", 1}};

/// Letters, digits, `_` and `-`.
bool is_word_character(char c);

class TextReader {
 public:
  using Names = std::vector<std::string>;

  /// The text outlives the reader.
  explicit TextReader(absl::string_view text) : text_(text) {}

  /// Keeps the problem at the character, unless there is one. Returns false.
  bool fail(size_t position, absl::string_view problem);
  /// InvalidArgument: the problem, the line that it is on, and a caret below the character.
  absl::Status status() const;

 protected:
  bool at_end() const { return position_ >= text_.size(); }
  bool at(char c) const { return !at_end() && text_[position_] == c; }
  bool comes(absl::string_view text) const;
  size_t position() const { return position_; }
  void go_to(size_t position) { position_ = position; }
  void advance(size_t characters) { position_ += characters; }
  absl::string_view text() const { return text_; }

  /// `what` was expected there; of the names the nearest to the word there is proposed.
  bool expected(size_t position, absl::string_view what, const Names& names = {});

  void skip_blanks();
  /// Also comments and the ends of lines and of rules.
  void skip_between_rules();

  /// Reads the character, and the blanks behind it, if it comes.
  bool accept(char c);
  /// The word that comes; empty if none does.
  absl::string_view peek_word();
  bool accept_word(absl::string_view wanted);
  bool keyword(const char* wanted);
  bool word(std::string& out, absl::string_view what);
  /// One of the names, which the error lists.
  bool one_of(absl::string_view what, const Names& names, std::string& out);
  /// Between quotes, in which \ stands before a quote and itself, and \n is the end of a line.
  bool quoted(std::string& out, absl::string_view what);

  /// The length of the digits that come, with a part behind a point.
  size_t digits(bool with_fraction) const;
  template <typename Number>
  bool whole(Number& out, absl::string_view what) {
    skip_blanks();
    const size_t length = digits(/*with_fraction=*/false);
    if (length == 0 || !absl::SimpleAtoi(text_.substr(position_, length), &out)) {
      return expected(position_, what);
    }
    position_ += length;
    return true;
  }
  /// With a point and an exponent. Keeps no problem.
  bool number(double& out);
  /// "30s"; "0" needs no unit.
  bool duration(int64_t& ns);
  /// Whether a duration comes, rather than a number of something.
  bool duration_is_next();

 private:
  const absl::string_view text_;
  size_t position_ = 0;
  size_t problem_at_ = 0;
  std::string problem_;
};

}  // namespace accelerate::simulator
