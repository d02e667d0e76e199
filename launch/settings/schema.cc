#include "launch/settings/schema.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "absl/algorithm/container.h"
#include "absl/log/absl_check.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "accelerate/base/enums.h"

namespace accelerate::launcher::settings {
namespace {

constexpr SectionName kSections[] = {
    {Section::kDeepSpeed, "deepspeed_config", ""},
    {Section::kDynamo, "dynamo_config", "dynamo_"},
    {Section::kFp8, "fp8_config", "fp8_"},
    {Section::kFsdp, "fsdp_config", "fsdp_"},
    {Section::kMegatron, "megatron_lm_config", "megatron_lm_"},
    {Section::kMpirun, "mpirun_config", ""},
    {Section::kParallelism, "parallelism_config", "parallelism_config_"},
};

constexpr const char* kDistributedTypes[] = {
    "NO",        "MULTI_CPU",  "MULTI_GPU", "MULTI_HPU", "MULTI_MLU", "MULTI_MUSA",  "MULTI_NEURON",
    "MULTI_NPU", "MULTI_SDAA", "MULTI_XPU", "DEEPSPEED", "FSDP",      "MEGATRON_LM", "XLA",
};

// Keys as older releases wrote them, or as their questionnaire did.
struct OldKey {
  Section section;
  const char* old_key;
  const char* name;
};

constexpr OldKey kOldKeys[] = {
    {Section::kFp8, "amax_history_length", "fp8_amax_history_len"},
    {Section::kFp8, "amax_compute_algorithm", "fp8_amax_compute_algo"},
    {Section::kFp8, "optimization_level", "fp8_opt_level"},
    {Section::kFsdp, "fsdp_backward_prefetch_policy", "fsdp_backward_prefetch"},
    {Section::kFsdp, "backward_prefetch_policy", "fsdp_backward_prefetch"},
    {Section::kFsdp, "fsdp_transformer_cls_to_wrap", "fsdp_transformer_layer_cls_to_wrap"},
    {Section::kMegatron, "megatron_lm_sequence_parallel", "megatron_lm_sequence_parallelism"},
};

absl::Status expected(absl::string_view what, absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("expected ", what, ", not \"", text, "\""));
}

struct Heading {
  Group group;
  const char* name;
  const char* title;
};

constexpr Heading kHeadings[] = {
    {Group::kProgram, "program", "Program and settings"},
    {Group::kRanks, "ranks", "Ranks and devices"},
    {Group::kMachines, "machines", "Machines"},
    {Group::kLogs, "output", "Output, failures and checks"},
    {Group::kSimulation, "simulation", "Simulation"},
    {Group::kLook, "look", "Looking only"},
    {Group::kCompile, "compile", "Compilation"},
    {Group::kFp8, "fp8", "8-bit floating point"},
    {Group::kFsdp, "fsdp", "FSDP"},
    {Group::kDeepSpeed, "deepspeed", "ZeRO (DeepSpeed)"},
    {Group::kParallelism, "mesh", "Mesh"},
    {Group::kMegatron, "megatron", "Megatron-LM"},
    {Group::kTpu, "tpu", "TPU"},
    {Group::kSageMaker, "sagemaker", "Amazon SageMaker"},
};

const Heading& heading_of(Group group) {
  const Heading* found = std::ranges::find(kHeadings, group, &Heading::group);
  ABSL_CHECK(found != std::end(kHeadings)) << "a group without a heading";
  return *found;
}

bool stands_in(const Setting& row, Section section) {
  return row.section == section || (section == Section::kSageMaker && row.in_sagemaker);
}

}  // namespace

std::vector<absl::string_view> Setting::choice_list() const {
  if (choices == nullptr) return {};
  return absl::StrSplit(choices, '|');
}

const Setting* find_setting(absl::string_view name) {
  for (const Setting& row : all_settings()) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

const Setting& setting(absl::string_view name) {
  const Setting* row = find_setting(name);
  ABSL_CHECK(row != nullptr) << "no setting " << name;
  return *row;
}

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

absl::Span<const SectionName> all_sections() { return kSections; }

const SectionName* find_section(absl::string_view key) {
  const auto* found = std::ranges::find(
      kSections, key, [](const auto& each) { return absl::string_view(each.key); });
  return found == std::end(kSections) ? nullptr : found;
}

const SectionName* find_section(Section section) {
  const auto* found = std::ranges::find(kSections, section, &SectionName::section);
  return found == std::end(kSections) ? nullptr : found;
}

const Setting* find_key(Section section, absl::string_view key) {
  for (const Setting& row : all_settings()) {
    if (stands_in(row, section) && key == row.key_name()) return &row;
  }
  for (const OldKey& old : kOldKeys) {
    if (old.section == section && key == old.old_key) return &setting(old.name);
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
  for (const SectionName& named : kSections) {
    if (section == Section::kTop ||
        (section == Section::kSageMaker && named.section == Section::kDynamo)) {
      keys.push_back(named.key);
    }
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

const char* group_title(Group group) { return heading_of(group).title; }
const char* group_name(Group group) { return heading_of(group).name; }

absl::Span<const Group> all_groups() {
  static const std::vector<Group> kGroups = [] {
    std::vector<Group> groups;
    for (const Heading& heading : kHeadings) groups.push_back(heading.group);
    return groups;
  }();
  return kGroups;
}

absl::Span<const char* const> distributed_types() { return kDistributedTypes; }
absl::Span<const char* const> sagemaker_distributed_types() {
  return EnumTable<SageMakerDistributedType>::kTexts;
}

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
