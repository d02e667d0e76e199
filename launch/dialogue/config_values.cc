#include "launch/dialogue/config_values.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/log/absl_check.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "accelerate/base/message_text.h"
#include "launch/settings/schema.h"
#include "launch/settings/value_text.h"

namespace accelerate::launch::dialogue {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kDistributedType[] = "distributed_type";

const settings::SectionName* section_of(const settings::Setting& row) {
  for (const settings::SectionName& named : settings::all_sections()) {
    if (named.section == row.section) return &named;
  }
  return nullptr;
}

// Where the file has the setting, and nothing of it there: keys have several spellings.
Json& cleared_map(settings::ConfigFile& config, const settings::Setting& row) {
  const settings::SectionName* section = section_of(row);
  Json& map = section != nullptr ? config.values[section->key] : config.values;
  if (!map.is_object()) map = Json::object();
  for (auto it = map.begin(); it != map.end();) {
    it = settings::find_key(row.section, it.key()) == &row ? map.erase(it) : std::next(it);
  }
  return map;
}

bool is_number(absl::string_view text) {
  int64_t ignored = 0;
  return absl::SimpleAtoi(text, &ignored);
}

// A text that files have as a number or a truth value, as HF Accelerate writes it.
Json plain_text(const settings::Setting& row, absl::string_view text) {
  if (row.choices != nullptr && is_number(row.choice_list().front())) {
    return Json::parse(text.begin(), text.end());
  }
  if (row.default_value != nullptr && absl::string_view(row.default_value) == "true") {
    if (const absl::StatusOr<bool> value = settings::parse_bool(text); value.ok()) return *value;
  }
  return std::string(text);
}

Json typed(const settings::Setting& row, absl::string_view text) {
  switch (row.type) {
    case settings::ValueType::kFlag:
    case settings::ValueType::kBool: return *settings::parse_bool(text);
    case settings::ValueType::kInt: {
      int64_t number = 0;
      ABSL_CHECK(absl::SimpleAtoi(text, &number)) << row.name << "=" << text;
      return number;
    }
    case settings::ValueType::kFloat: {
      double number = 0;
      ABSL_CHECK(absl::SimpleAtod(text, &number)) << row.name << "=" << text;
      return number;
    }
    case settings::ValueType::kTexts:
      return std::vector<std::string>(absl::StrSplit(text, ',', absl::SkipEmpty()));
    case settings::ValueType::kText: return plain_text(row, text);
    case settings::ValueType::kBools: return std::string(text);
  }
  return nullptr;
}

// A key of some file, or a setting's name.
const settings::Setting* find_row(absl::string_view name) {
  const std::vector<std::string> parts = absl::StrSplit(name, absl::MaxSplits('.', 1));
  if (parts.size() == 2) {
    for (const settings::SectionName& named : settings::all_sections()) {
      if (parts[0] == named.key) return settings::find_key(named.section, parts[1]);
    }
    return nullptr;
  }
  for (const settings::Section section : {settings::Section::kTop, settings::Section::kSageMaker}) {
    if (const settings::Setting* row = settings::find_key(section, name)) return row;
  }
  const settings::Setting* row = settings::find_setting(name);
  return row != nullptr && row->section != settings::Section::kNone ? row : nullptr;
}

std::string suggested_key(absl::string_view name) {
  std::vector<std::string> keys;
  for (const settings::Setting& row : settings::all_settings()) {
    if (row.section != settings::Section::kNone) keys.push_back(row.key_name());
  }
  return did_you_mean(name.substr(name.find('.') + 1), keys);
}

absl::Status check(const settings::Setting& row, const std::string& text) {
  if (absl::string_view(row.name) != kDistributedType) return settings::check_value(row, text);
  std::vector<std::string> types;
  for (const auto& list :
       {settings::distributed_types(), settings::sagemaker_distributed_types()}) {
    types.insert(types.end(), list.begin(), list.end());
  }
  if (std::find(types.begin(), types.end(), text) != types.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("expected one of ", absl::StrJoin(types, ", "), ", not \"", text, "\""));
}

}  // namespace

void put_value(settings::ConfigFile& config, absl::string_view name, absl::string_view text) {
  const settings::Setting& row = settings::setting(name);
  cleared_map(config, row)[row.key_name()] = typed(row, text);
}

absl::Status set_value(settings::ConfigFile& config, absl::string_view assignment) {
  const size_t equals = assignment.find('=');
  if (equals == assignment.npos || equals == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--set ", assignment, ": expected KEY=VALUE, as in num_processes=4"));
  }
  const std::string key =
      absl::StrReplaceAll(absl::StripAsciiWhitespace(assignment.substr(0, equals)), {{"-", "_"}});
  std::string text(absl::StripAsciiWhitespace(assignment.substr(equals + 1)));
  const settings::Setting* row = find_row(key);
  if (row == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("--set ", assignment, ": unknown key ", key, suggested_key(key)));
  }
  text = settings::schema_text(*row, text);
  if (text.empty()) {
    cleared_map(config, *row);
    return absl::OkStatus();
  }
  if (!settings::is_utf8(text)) {
    return absl::InvalidArgumentError(absl::StrCat("--set ", key, ": the value is not UTF-8"));
  }
  if (absl::Status ok = check(*row, text); !ok.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--set ", assignment, ": ", ok.message()));
  }
  put_value(config, row->name, text);
  return absl::OkStatus();
}

}  // namespace accelerate::launch::dialogue
