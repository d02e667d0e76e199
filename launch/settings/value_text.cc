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

}  // namespace accelerate::launch::settings
