#include "launch/settings/schema.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include <nlohmann/json.hpp>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "accelerate/base/enums.h"
#include "accelerate/base/number_text.h"
#include "accelerate/base/status.h"

namespace accelerate::launcher::settings {
namespace {

absl::Status expected(absl::string_view what, absl::string_view text) {
  return invalid("expected ", what, ", not \"", text, "\"");
}

constexpr const char* kTitles[] = {"Program and settings",
                                   "Ranks and devices",
                                   "Machines",
                                   "Output, failures and checks",
                                   "Simulation",
                                   "Looking only",
                                   "Compilation",
                                   "8-bit floating point",
                                   "FSDP",
                                   "ZeRO (DeepSpeed)",
                                   "Mesh",
                                   "Megatron-LM",
                                   "TPU",
                                   "Amazon SageMaker"};
static_assert(std::size(kTitles) == std::size(EnumTable<Group>::kTexts));

bool stands_in(const Setting& row, Section section) {
  return row.has_key() &&
         (row.section == section || (section == Section::kSageMaker && row.in_sagemaker));
}

}  // namespace

const Setting* find_flag(absl::string_view flag) {
  const std::string name = absl::StrReplaceAll(flag, {{"-", "_"}});
  for (const Setting& row : all_settings()) {
    if (!row.has_flag()) continue;
    if (name == row.flag_name()) return &row;
    if (row.other_flag != nullptr && name == row.other_flag) return &row;
    if (row.negated_flag != nullptr && name == row.negated_flag) return &row;
    if (name.size() == 1 && name[0] == row.short_name) return &row;
  }
  return nullptr;
}

const Setting* find_key(Section section, absl::string_view key) {
  for (const Setting& row : all_settings()) {
    if (stands_in(row, section) && key == row.key_name()) return &row;
    if (row.section == section && row.has_old_key(key)) return &row;
  }
  const SectionName* named = find_section(section);
  if (named == nullptr || *named->prefix == 0) return nullptr;
  if (absl::StartsWith(key, named->prefix)) return nullptr;
  return find_key(section, absl::StrCat(named->prefix, key));
}

std::vector<std::string> known_keys(Section section) {
  std::vector<std::string> keys;
  for (const Setting& row : all_settings()) {
    if (stands_in(row, section)) keys.push_back(row.key_name());
  }
  for (const SectionName& named : all_sections()) {
    if (section == Section::kTop ||
        (section == Section::kSageMaker && named.section == Section::kDynamo)) {
      keys.push_back(named.key);
    }
  }
  std::ranges::sort(keys);
  return keys;
}

const char* group_title(Group group) { return kTitles[static_cast<size_t>(group)]; }

absl::Span<const char* const> distributed_types() { return EnumTable<DistributedType>::kTexts; }
absl::Span<const char* const> sagemaker_distributed_types() {
  return EnumTable<SageMakerDistributedType>::kTexts;
}

absl::StatusOr<bool> parse_bool(absl::string_view text) {
  const std::optional<bool> value = accelerate::parse_bool({text.data(), text.size()});
  if (value) return *value;
  return expected("true or false", text);
}

absl::StatusOr<std::vector<bool>> parse_bools(absl::string_view text) {
  absl::string_view list = absl::StripAsciiWhitespace(text);
  for (const absl::string_view brackets : {"()", "[]"}) {
    if (!absl::ConsumePrefix(&list, brackets.substr(0, 1))) continue;
    if (!absl::ConsumeSuffix(&list, brackets.substr(1))) list = "";
    // As Python writes a tuple, with or without a comma at its end.
    list = absl::StripSuffix(absl::StripTrailingAsciiWhitespace(list), ",");
    break;
  }
  std::vector<bool> values;
  for (const absl::string_view part : absl::StrSplit(list, ',')) {
    const absl::StatusOr<bool> value = parse_bool(absl::StripAsciiWhitespace(part));
    if (!value.ok()) return expected("three booleans as in true,false,true", text);
    values.push_back(*value);
  }
  if (values.size() != 3) return expected("three booleans as in true,false,true", text);
  return values;
}

absl::Status check_value(const Setting& setting, absl::string_view text) {
  switch (setting.type) {
    case ValueType::kFlag:
    case ValueType::kBool: return parse_bool(text).status();
    case ValueType::kBools: return parse_bools(text).status();
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
  if (choices.empty() || absl::c_linear_search(choices, text)) return absl::OkStatus();
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

}  // namespace accelerate::launcher::settings
