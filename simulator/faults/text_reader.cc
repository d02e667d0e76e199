#include "simulator/faults/text_reader.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/message_text.h"

namespace accelerate::simulator {

bool is_word_character(char c) { return absl::ascii_isalnum(c) || c == '_' || c == '-'; }

bool TextReader::fail(size_t position, absl::string_view problem) {
  if (problem_.empty()) {
    problem_at_ = std::min(position, text_.size());
    problem_ = std::string(problem);
  }
  return false;
}

bool TextReader::expected(size_t position, absl::string_view what, const Names& names) {
  size_t end = position;
  while (end < text_.size() && is_word_character(text_[end])) ++end;
  const absl::string_view found = text_.substr(position, end - position);
  return fail(position,
              absl::StrCat("expected ", what, found.empty() ? "" : did_you_mean(found, names)));
}

absl::Status TextReader::status() const {
  if (problem_.empty()) return absl::OkStatus();
  const absl::string_view before = text_.substr(0, problem_at_);
  const size_t newline = before.rfind('\n');
  const size_t begin = newline == absl::string_view::npos ? 0 : newline + 1;
  const size_t end = std::min(text_.find('\n', problem_at_), text_.size());
  const bool is_one_line = !absl::StrContains(absl::StripAsciiWhitespace(text_), "\n");
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  return absl::InvalidArgumentError(absl::StrCat(
      "faults: ", problem_, " at character ", problem_at_ - begin + 1,
      is_one_line ? "" : absl::StrCat(" of line ", line), "\n  ", text_.substr(begin, end - begin),
      "\n  ", std::string(problem_at_ - begin, ' '), "^"));
}

bool TextReader::comes(absl::string_view text) const {
  return !at_end() && absl::StartsWith(text_.substr(position_), text);
}

void TextReader::skip_blanks() {
  while (at(' ') || at('\t') || at('\r')) ++position_;
}

void TextReader::skip_between_rules() {
  while (!at_end()) {
    if (at('#')) {
      while (!at_end() && !at('\n')) ++position_;
    } else if (absl::ascii_isspace(text_[position_]) || at(';')) {
      ++position_;
    } else {
      return;
    }
  }
}

bool TextReader::accept(char c) {
  skip_blanks();
  if (!at(c)) return false;
  ++position_;
  skip_blanks();
  return true;
}

absl::string_view TextReader::peek_word() {
  skip_blanks();
  size_t end = position_;
  while (end < text_.size() && is_word_character(text_[end])) ++end;
  return at_end() ? absl::string_view() : text_.substr(position_, end - position_);
}

bool TextReader::accept_word(absl::string_view wanted) {
  const size_t before = position_;
  if (peek_word() != wanted) {
    position_ = before;
    return false;
  }
  position_ += wanted.size();
  return true;
}

bool TextReader::keyword(const char* wanted) {
  if (accept_word(wanted)) return true;
  skip_blanks();
  return expected(position_, absl::StrCat("\"", wanted, "\""), {wanted});
}

bool TextReader::word(std::string& out, absl::string_view what) {
  const absl::string_view found = peek_word();
  if (found.empty()) return expected(position_, what);
  out = std::string(found);
  position_ += found.size();
  return true;
}

bool TextReader::one_of(absl::string_view what, const Names& names, std::string& out) {
  const std::string found(peek_word());
  if (std::find(names.begin(), names.end(), found) == names.end()) {
    return expected(position_, absl::StrCat(what, ", one of ", absl::StrJoin(names, ", ")), names);
  }
  out = found;
  position_ += found.size();
  return true;
}

bool TextReader::quoted(std::string& out, absl::string_view what) {
  skip_blanks();
  if (!at('"')) return expected(position_, what);
  const size_t begin = position_++;
  out.clear();
  for (; !at_end() && !at('"') && !at('\n'); ++position_) {
    if (!at('\\')) {
      out += text_[position_];
      continue;
    }
    ++position_;
    if (at_end()) break;
    out += at('n') ? '\n' : text_[position_];
  }
  if (!at('"')) return fail(begin, "expected a closing quote for this one");
  ++position_;
  return true;
}

size_t TextReader::digits(bool with_fraction) const {
  size_t end = position_;
  while (end < text_.size() && absl::ascii_isdigit(text_[end])) ++end;
  const bool has_fraction = with_fraction && end > position_ && end + 1 < text_.size() &&
                            text_[end] == '.' && absl::ascii_isdigit(text_[end + 1]);
  if (!has_fraction) return end - position_;
  ++end;
  while (end < text_.size() && absl::ascii_isdigit(text_[end])) ++end;
  return end - position_;
}

bool TextReader::number(double& out) {
  size_t length = digits(/*with_fraction=*/true);
  if (length == 0) return false;
  const absl::string_view exponent = text_.substr(position_ + length);
  size_t more = 0;
  if (!exponent.empty() && exponent[0] == 'e') {
    more = 1;
    if (more < exponent.size() && (exponent[more] == '-' || exponent[more] == '+')) ++more;
    const size_t sign = more;
    while (more < exponent.size() && absl::ascii_isdigit(exponent[more])) ++more;
    if (more == sign) more = 0;
  }
  length += more;
  if (!absl::SimpleAtod(text_.substr(position_, length), &out)) return false;
  position_ += length;
  return true;
}

bool TextReader::duration(int64_t& ns) {
  skip_blanks();
  constexpr char kWhat[] = "a duration such as 30s, 5ms or 2m";
  const size_t begin = position_;
  const size_t length = digits(/*with_fraction=*/true);
  if (length == 0) return expected(begin, kWhat);
  const absl::string_view amount = text_.substr(begin, length);
  size_t end = begin + length;
  while (end < text_.size() && absl::ascii_isalpha(text_[end])) ++end;
  const absl::string_view unit = text_.substr(begin + length, end - begin - length);
  if (unit.empty() && amount == "0") {
    position_ = end;
    ns = 0;
    return true;
  }
  const auto* known = std::find_if(std::begin(kTimeUnits), std::end(kTimeUnits),
                                   [unit](const TimeUnit& each) { return unit == each.name; });
  if (known == std::end(kTimeUnits)) {
    return fail(begin + length, "expected a unit of time: ns, us, ms, s, m or h");
  }
  const size_t point = amount.find('.');
  const bool is_whole = point == absl::string_view::npos;
  const absl::string_view fraction = is_whole ? absl::string_view() : amount.substr(point + 1);
  int64_t integral = 0;
  int64_t part = 0;
  if (fraction.size() > 15 || !absl::SimpleAtoi(amount.substr(0, point), &integral) ||
      (!is_whole && !absl::SimpleAtoi(fraction, &part))) {
    return expected(begin, kWhat);
  }
  int64_t scale = 1;
  for (size_t i = 0; i < fraction.size(); ++i) scale *= 10;
  const __int128 scaled = static_cast<__int128>(part) * known->ns;
  if (scaled % scale != 0) return fail(begin, "expected a whole number of nanoseconds");
  const __int128 total = static_cast<__int128>(integral) * known->ns + scaled / scale;
  if (total > std::numeric_limits<int64_t>::max() / 4) {
    return fail(begin, "expected a duration of less than 70 years");
  }
  ns = static_cast<int64_t>(total);
  position_ = end;
  return true;
}

bool TextReader::duration_is_next() {
  skip_blanks();
  const size_t end = position_ + digits(/*with_fraction=*/true);
  return end > position_ && end < text_.size() && absl::ascii_isalpha(text_[end]);
}

}  // namespace accelerate::simulator
