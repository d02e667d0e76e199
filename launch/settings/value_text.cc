#include "launch/settings/value_text.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace accelerate::launch::settings {
namespace {

absl::Status expected(absl::string_view what, absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("expected ", what, ", not \"", text, "\""));
}

absl::Status check_bools(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ',');
  const bool all_good = std::all_of(parts.begin(), parts.end(), [](absl::string_view part) {
    return parse_bool(absl::StripAsciiWhitespace(part)).ok();
  });
  if (parts.size() == 3 && all_good) return absl::OkStatus();
  return expected("three booleans as in true,false,true", text);
}

// Insertions, removals, replacements and swaps of neighbours that make one word of the other.
size_t edit_distance(absl::string_view a, absl::string_view b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) cost[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) cost[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1,
                             cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

absl::StatusOr<bool> parse_bool(absl::string_view text) {
  const std::string word = absl::AsciiStrToLower(text);
  for (const char* yes : {"y", "yes", "t", "true", "on", "1"}) {
    if (word == yes) return true;
  }
  for (const char* no : {"n", "no", "f", "false", "off", "0"}) {
    if (word == no) return false;
  }
  return expected("true or false", text);
}

absl::Status check_value(const Setting& setting, absl::string_view text) {
  switch (setting.type) {
    case ValueType::kFlag:
    case ValueType::kBool: return parse_bool(text).status();
    case ValueType::kBools: return check_bools(text);
    case ValueType::kInt: {
      int64_t number = 0;
      if (!absl::SimpleAtoi(text, &number)) return expected("a whole number", text);
      break;
    }
    case ValueType::kFloat: {
      double number = 0;
      if (!absl::SimpleAtod(text, &number) || !std::isfinite(number)) {
        return expected("a number", text);
      }
      break;
    }
    case ValueType::kText:
    case ValueType::kTexts: break;
  }
  const std::vector<absl::string_view> choices = setting.choice_list();
  if (choices.empty() || std::find(choices.begin(), choices.end(), text) != choices.end()) {
    return absl::OkStatus();
  }
  return expected(absl::StrCat("one of ", absl::StrJoin(choices, ", ")), text);
}

bool is_utf8(const std::string& text) {
  try {
    nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
  return true;
}

std::string schema_text(const Setting& setting, const std::string& text) {
  if (!setting.is_in_any_case) return text;
  for (const absl::string_view choice : setting.choice_list()) {
    if (absl::EqualsIgnoreCase(choice, text)) return std::string(choice);
  }
  return text;
}

std::string nearest_word(absl::string_view word, const std::vector<std::string>& words) {
  std::string nearest;
  size_t least = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : words) {
    // A beginning is as good as one wrong letter.
    const bool is_beginning = word.size() > 3 && absl::StartsWith(candidate, word);
    const size_t distance = is_beginning ? 1 : edit_distance(word, candidate);
    if (distance < least) {
      least = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace accelerate::launch::settings
