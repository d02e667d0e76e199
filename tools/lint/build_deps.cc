#include "tools/lint/build_deps.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <utility>

namespace accelerate::tidy {
namespace {

struct Token {
  enum class Kind { kWord, kText, kSymbol };
  Kind kind;
  std::string_view value;  // of a text without its quotes

  bool is(char symbol) const { return kind == Kind::kSymbol && value[0] == symbol; }
  bool opens() const { return is('(') || is('[') || is('{'); }
  bool closes() const { return is(')') || is(']') || is('}'); }
};

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

std::vector<Token> tokens_of(std::string_view text) {
  std::vector<Token> tokens;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    size_t end = at + 1;
    if (c == '#') {
      end = std::min(text.find('\n', at), text.size());
    } else if (c == '"') {
      const size_t close = std::min(text.find('"', at + 1), text.size());
      tokens.push_back({Token::Kind::kText, text.substr(at + 1, close - at - 1)});
      end = std::min(close + 1, text.size());
    } else if (is_word(c)) {
      while (end < text.size() && is_word(text[end])) ++end;
      tokens.push_back({Token::Kind::kWord, text.substr(at, end - at)});
    } else if (std::isspace(static_cast<unsigned char>(c)) == 0) {
      tokens.push_back({Token::Kind::kSymbol, text.substr(at, 1)});
    }
    at = end;
  }
  return tokens;
}

// The texts of the value that begins at a token, up to the comma or the bracket behind it.
std::vector<std::string> texts_of_value(const std::vector<Token>& tokens, size_t begin) {
  std::vector<std::string> texts;
  int depth = 0;
  for (size_t i = begin; i < tokens.size(); ++i) {
    const Token& token = tokens[i];
    if (depth == 0 && (token.closes() || token.is(','))) break;
    depth += token.opens() ? 1 : token.closes() ? -1 : 0;
    if (token.kind == Token::Kind::kText) texts.emplace_back(token.value);
  }
  return texts;
}

}  // namespace

BuildDeps build_deps(std::string_view text) {
  const std::vector<Token> tokens = tokens_of(text);
  BuildDeps deps;
  std::string_view rule;
  int depth = 0;
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    const Token& token = tokens[i];
    const Token& next = tokens[i + 1];
    if (depth == 0 && token.kind == Token::Kind::kWord && next.is('(')) rule = token.value;
    depth += token.opens() ? 1 : token.closes() ? -1 : 0;
    // An argument is the rule's own; an entry is that of a test which a room describes.
    const bool is_argument = token.kind == Token::Kind::kWord && next.is('=') && depth == 1;
    const bool is_entry = token.kind == Token::Kind::kText && next.is(':');
    if (!is_argument && !is_entry) continue;
    if (token.value == "deps" || (token.value == "test_deps" && is_argument)) {
      const bool is_of_tests = is_entry || token.value == "test_deps";
      std::vector<std::string>& labels = is_of_tests ? deps.of_tests : deps.deps;
      for (std::string& each : texts_of_value(tokens, i + 2)) labels.push_back(std::move(each));
    } else if (rule == "room" && is_argument && token.value == "visibility") {
      deps.is_public = std::ranges::count(texts_of_value(tokens, i + 2), "//visibility:public") > 0;
    }
  }
  return deps;
}

std::string package_of(std::string_view label) {
  if (!label.starts_with("//")) return "";
  label.remove_prefix(2);
  const size_t colon = label.find(':');
  const std::string_view package = label.substr(0, colon);
  const std::string_view name = package.substr(package.rfind('/') + 1);
  return colon == label.npos || label.substr(colon + 1) == name ? std::string(package) : "";
}

}  // namespace accelerate::tidy
