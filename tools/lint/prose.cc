#include <algorithm>
#include <cctype>
#include <format>
#include <set>
#include <string>
#include <string_view>

#include "tools/lint/tidy.h"

namespace accelerate::tidy {
namespace {

// Words that stand for a noun, or for a place or a fact that an earlier sentence named.
const std::set<std::string_view> kPronouns = {
    "another", "any",      "anybody", "anything",   "as",     "everybody", "everything",
    "here",    "it",       "its",     "itself",     "nobody", "nothing",   "one",
    "ones",    "other",    "others",  "somebody",   "that",   "something", "theirs",
    "them",    "there",    "these",   "themselves", "they",   "this",      "those",
    "what",    "whatever", "where",   "whether",    "which",  "whichever", "who",
    "whoever", "whom",     "whose",
};
constexpr int kFewestWords = 7;
constexpr double kHighestShare = 0.4;

bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)); }
bool is_letter_or_digit(char c) { return is_letter(c) || (c >= '0' && c <= '9'); }

// A word without the punctuation around it, in lower case: "(Ranks'" is "ranks". Empty if there is
// no letter.
std::string plain_word(std::string_view word) {
  const auto first = std::find_if(word.begin(), word.end(), is_letter_or_digit);
  const auto last = std::find_if(word.rbegin(), word.rend(), is_letter_or_digit).base();
  if (first >= last || std::none_of(first, last, is_letter)) return "";
  std::string result(first, last);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (result.ends_with("'s")) result.resize(result.size() - 2);
  return result;
}

bool ends_sentence(std::string_view word) {
  const size_t last = word.find_last_not_of("\"')*_`");
  return last != word.npos && std::string_view(".!?").find(word[last]) != word.npos;
}

// Takes a text in pieces, cuts it into sentences, and reports those with too many pronouns.
class Sentences {
 public:
  Sentences(const std::string& path, Findings& findings) : path_(path), findings_(findings) {}

  // A piece of one line. Code in backticks is one word.
  void add(std::string_view text, int line) {
    bool in_code = false;
    size_t start = 0;
    for (size_t at = 0; at <= text.size(); ++at) {
      if (at < text.size() && text[at] == '`') in_code = !in_code;
      const bool closed_later = in_code && text.find('`', at + 1) != text.npos;
      if (at < text.size() && (!is_blank(text[at]) || closed_later)) continue;
      if (at > start) add_word(text.substr(start, at - start), line);
      start = at + 1;
    }
  }

  // The text before this place and the one after it are not of one sentence.
  void end() {
    if (words_ >= kFewestWords && pronouns_ > kHighestShare * words_) {
      findings_.push_back(
          {path_, line_,
           std::format("{:.2f} of the words are pronouns, more than {}: name the "
                       "things in \"{}\"",
                       static_cast<double>(pronouns_) / words_, kHighestShare, sentence_)});
    }
    words_ = pronouns_ = 0;
    sentence_.clear();
  }

 private:
  void add_word(std::string_view word, int line) {
    if (sentence_.empty()) line_ = line;
    sentence_ += (sentence_.empty() ? "" : " ") + std::string(word);
    if (const std::string plain = plain_word(word); !plain.empty()) {
      ++words_;
      if (kPronouns.contains(plain)) ++pronouns_;
    }
    if (ends_sentence(word)) end();
  }

  const std::string path_;
  Findings& findings_;
  std::string sentence_;
  int line_ = 0;
  int words_ = 0;
  int pronouns_ = 0;
};

// The end of the quoted text that begins at `open`: its closing quote, or the end of the text.
size_t closing_quote(std::string_view text, size_t open) {
  size_t at = open + 1;
  while (at < text.size() && text[at] != text[open]) at += text[at] == '\\' ? 2 : 1;
  return std::min(at, text.size());
}

// Reads C++: comments, and strings, which the values of a message may part. Raw strings are data.
class CppProse {
 public:
  CppProse(const File& file, Findings& findings)
      : text_(file.contents), comments_(file.path, findings), strings_(file.path, findings) {}

  void read() {
    while (at_ < text_.size()) read_next();
    comments_.end();
    strings_.end();
  }

 private:
  void read_next() {
    const std::string_view rest = text_.substr(at_);
    if (rest.starts_with("//")) return read_comment(rest.substr(0, rest.find('\n')));
    const char c = text_[at_];
    // An empty line, and code, are between two comments.
    if (rest.starts_with("\n\n") || !is_blank(c)) comments_.end();
    if (c == '"') return read_string();
    // Within a name R opens no string, and within a number an apostrophe separates digits.
    const bool in_word = at_ > 0 && is_letter_or_digit(text_[at_ - 1]);
    if (rest.starts_with("R\"") && !in_word) return pass_raw_string();
    if (c == '\'' && !in_word) return pass(closing_quote(text_, at_) + 1);
    if (c == ';' || c == '{' || c == '}') strings_.end();
    pass(at_ + 1);
  }

  void read_comment(std::string_view comment) {
    const size_t start = comment.find_first_not_of("/<");
    const std::string_view words = start == comment.npos ? "" : comment.substr(start);
    const bool is_item = words.starts_with(" - ");
    if (is_item || words.find_first_not_of(' ') == words.npos) comments_.end();
    comments_.add(words, line_);
    pass(at_ + comment.size());
  }

  void read_string() {
    const size_t close = closing_quote(text_, at_);
    std::string words(text_.substr(at_ + 1, close - at_ - 1));
    for (size_t at = words.find("\\n"); at != words.npos; at = words.find("\\n")) {
      words.replace(at, 2, " ");
    }
    strings_.add(words, line_);
    pass(close + 1);
    // Two strings with a comma between them are two texts; a message has its values there.
    const std::string_view after = without_leading_blanks(text_.substr(at_));
    if (after.starts_with(',') && without_leading_blanks(after.substr(1)).starts_with('"')) {
      strings_.end();
    }
  }

  void pass_raw_string() {
    const size_t open = text_.find('(', at_);
    if (open == text_.npos) return pass(text_.size());
    const std::string end = ")" + std::string(text_.substr(at_ + 2, open - at_ - 2)) + "\"";
    const size_t close = text_.find(end, open);
    pass(close == text_.npos ? text_.size() : close + end.size());
  }

  void pass(size_t to) {
    to = std::min(to, text_.size());
    line_ += static_cast<int>(std::count(text_.begin() + at_, text_.begin() + to, '\n'));
    at_ = to;
  }

  const std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  Sentences comments_;
  Sentences strings_;
};

// Whether a line begins an item of a list: "- ", "* " or "1. ".
bool is_list_item(std::string_view line) {
  if (line.starts_with("- ") || line.starts_with("* ")) return true;
  const size_t digits = line.find_first_not_of("0123456789");
  return digits != 0 && digits != line.npos && line.substr(digits).starts_with(". ");
}

void read_markdown(const File& file, Findings& findings) {
  Sentences sentences(file.path, findings);
  bool in_code = false;
  int number = 0;
  for (std::string_view line : lines_of(file.contents)) {
    ++number;
    line = without_leading_blanks(line);
    const bool is_fence = line.starts_with("```");
    const bool is_row = line.starts_with('|');
    const bool is_heading = line.starts_with('#');
    if (is_fence) in_code = !in_code;
    if (line.empty() || is_fence || is_row || is_heading || is_list_item(line)) sentences.end();
    if (in_code || is_fence) continue;
    if (!is_row) {
      sentences.add(line, number);
      if (is_heading) sentences.end();
      continue;
    }
    while (!line.empty()) {  // A cell is a sentence of its own.
      const size_t end = std::min(line.find('|'), line.size());
      sentences.add(line.substr(0, end), number);
      sentences.end();
      line.remove_prefix(std::min(end + 1, line.size()));
    }
  }
  sentences.end();
}

void read_script(const File& file, Findings& findings) {
  Sentences sentences(file.path, findings);
  int number = 0;
  for (std::string_view line : lines_of(file.contents)) {
    ++number;
    line = without_leading_blanks(line);
    if (!line.starts_with('#') || line == "#") sentences.end();
    if (line.starts_with('#')) sentences.add(line.substr(1), number);
  }
  sentences.end();
}

}  // namespace

Findings check_pronouns(const File& file) {
  if (file.path.starts_with("integration_tests/golden/data/")) return {};
  Findings findings;
  if (is_cpp(file.path)) {
    CppProse(file, findings).read();
  } else if (file.path.ends_with(".md")) {
    read_markdown(file, findings);
  } else if (file.path.ends_with(".sh") || file.path.ends_with(".py")) {
    read_script(file, findings);
  }
  std::ranges::stable_sort(findings, {}, &Finding::line);
  return findings;
}

}  // namespace accelerate::tidy
