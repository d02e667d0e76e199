#include "launch/settings/settings.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/log/absl_check.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/status.h"
#include "launch/process/process_plan.h"
#include "launch/settings/schema.h"

namespace accelerate::launcher::settings {
namespace {

using Json = nlohmann::ordered_json;

// The flags that choose the kind of run; a file uses distributed_type.
constexpr const char* kKindFlags[] = {
    "multi_gpu", "tpu", "tpu_use_cluster", "use_deepspeed", "use_fsdp", "use_megatron_lm", "cpu"};

// The section of a file that stands for --use_parallelism_config.
constexpr char kMeshSection[] = "parallelism_config";

bool is_kind_flag(absl::string_view name) { return absl::c_linear_search(kKindFlags, name); }

bool has_kind_flag(const TypedFlags& typed) {
  return absl::c_any_of(kKindFlags, [&](const char* name) { return typed.contains(name); });
}

// "c.yaml:3"; without the line of a key that the file has in another form.
std::string place_of(const ConfigFile& config, const std::string& key) {
  const auto line = config.lines.find(key);
  return absl::StrCat(config.path.substr(config.path.rfind('/') + 1),
                      line == config.lines.end() ? "" : absl::StrCat(":", line->second));
}

}  // namespace

absl::StatusOr<Settings> Settings::resolve(const TypedFlags& typed, const ConfigFile* config,
                                           absl::Span<const std::string> environment) {
  Settings settings;
  const bool ignores_kind_in_environment = has_kind_flag(typed) || config != nullptr;
  for (const Setting& row : all_settings()) {
    if (row.default_value != nullptr) settings.values_[row.name] = {{row.default_value}, {}, ""};
    if (is_kind_flag(row.name) && ignores_kind_in_environment) continue;
    ACCELERATE_RETURN_IF_ERROR(settings.apply_environment(row, environment));
  }
  if (config != nullptr) {
    settings.apply_config(*config);
    settings.apply_distributed_type(*config, typed);
  }
  for (const auto& [name, texts] : typed) {
    const Setting& row = setting(name);
    Value& value = settings.values_[name];
    value = {{}, Provenance::kFlag, absl::StrCat("--", row.flag_name())};
    for (const std::string& text : texts) {
      value.texts.push_back(schema_text(row, text));
      ACCELERATE_RETURN_IF_ERROR(in_file(value.where, check_value(row, value.texts.back())));
    }
    if (row.type != ValueType::kTexts) value.texts = {value.texts.back()};
  }
  return settings;
}

absl::Status Settings::apply_environment(const Setting& row,
                                         absl::Span<const std::string> environment) {
  const std::string variable = row.variable_name();
  if (variable.empty() || !row.variable_is_read) return absl::OkStatus();
  const std::string text = process::environment_value(environment, variable);
  if (text.empty()) return absl::OkStatus();
  const std::string kept = schema_text(row, text);
  ACCELERATE_RETURN_IF_ERROR(in_file(absl::StrCat("variable ", variable), check_value(row, kept)));
  values_[row.name] = {{kept}, Provenance::kEnvironment, variable};
  return absl::OkStatus();
}

void Settings::apply_config(const ConfigFile& config) {
  config_path_ = config.path;
  has_config_ = true;
  is_sagemaker_ = config.is_sagemaker();
  notes_ = config.notes;
  const Section top = is_sagemaker_ ? Section::kSageMaker : Section::kTop;
  for (const auto& [key, value] : config.values.items()) {
    if (const Setting* row = find_key(top, key)) {
      apply_key(config, *row, value, key);
      continue;
    }
    const SectionName* section = find_section(key);
    if (section == nullptr) continue;
    for (const auto& [inner, inner_value] : value.items()) {
      const Setting* row = find_key(section->section, inner);
      ABSL_CHECK(row != nullptr) << "a checked configuration has the key " << inner;
      apply_key(config, *row, inner_value, absl::StrCat(key, ".", inner));
      if (section->section == Section::kDeepSpeed) deepspeed_keys_.push_back(inner);
    }
  }
}

void Settings::apply_key(const ConfigFile& config, const Setting& row, const Json& value,
                         const std::string& key) {
  if (value.is_null()) return;
  Value& kept = values_[row.name];
  kept = {{}, Provenance::kConfigFile, place_of(config, key)};
  if (value.is_array()) {
    for (const Json& item : value) kept.texts.push_back(item.get<std::string>());
  } else {
    kept.texts = {schema_text(row, value.is_string() ? value.get<std::string>() : value.dump())};
  }
}

void Settings::apply_distributed_type(const ConfigFile& config, const TypedFlags& typed) {
  if (is_sagemaker_ || has_kind_flag(typed)) return;
  const std::string type = config.values["distributed_type"].get<std::string>();
  const bool is_multi = absl::StartsWith(type, "MULTI_") && type != "MULTI_CPU";
  const std::pair<const char*, bool> kinds[] = {
      {"multi_gpu", is_multi},
      {"tpu", type == "XLA"},
      {"use_deepspeed", type == "DEEPSPEED"},
      {"use_fsdp", type == "FSDP"},
      {"use_megatron_lm", type == "MEGATRON_LM"},
  };
  const std::string where =
      text("distributed_type").empty() ? "" : values_["distributed_type"].where;
  for (const auto& [name, is_on] : kinds) {
    values_[name] = {{is_on ? "true" : "false"}, Provenance::kConfigFile, where};
  }
  if (type == "MULTI_CPU") values_["cpu"] = {{"true"}, Provenance::kConfigFile, where};
  if (type != "XLA") values_["tpu_use_cluster"] = {{"false"}, Provenance::kConfigFile, where};
  const auto mesh = config.values.find(kMeshSection);
  if (mesh != config.values.end() && mesh->is_object() && !mesh->empty()) {
    values_["use_parallelism_config"] = {
        {"true"}, Provenance::kConfigFile, place_of(config, kMeshSection)};
  }
}

const Settings::Value* Settings::find(absl::string_view name) const {
  ABSL_CHECK(find_setting(name) != nullptr) << "no setting " << name;
  const auto found = values_.find(name);
  return found == values_.end() || found->second.texts.empty() ? nullptr : &found->second;
}

bool Settings::is_set(absl::string_view name) const { return find(name) != nullptr; }

Provenance Settings::provenance(absl::string_view name) const {
  const Value* value = find(name);
  return value == nullptr ? Provenance::kDefault : value->provenance;
}

std::string Settings::text(absl::string_view name) const {
  const Value* value = find(name);
  return value == nullptr ? "" : value->texts.front();
}

std::vector<std::string> Settings::texts(absl::string_view name) const {
  const Value* value = find(name);
  return value == nullptr ? std::vector<std::string>() : value->texts;
}

bool Settings::flag(absl::string_view name) const {
  const Value* value = find(name);
  return value != nullptr && parse_bool(value->texts.front()).value_or(false);
}

int64_t Settings::number(absl::string_view name) const {
  int64_t number = 0;
  return absl::SimpleAtoi(text(name), &number) ? number : 0;
}

double Settings::real(absl::string_view name) const {
  double number = 0;
  return absl::SimpleAtod(text(name), &number) ? number : 0;
}

void Settings::set(absl::string_view name, std::string text, Provenance provenance,
                   std::string where) {
  ABSL_CHECK(find_setting(name) != nullptr) << "no setting " << name;
  values_[std::string(name)] = {{std::move(text)}, provenance, std::move(where)};
}

void Settings::forget(absl::string_view name) {
  const Setting& row = setting(name);
  values_.erase(row.name);
  if (row.default_value != nullptr) values_[row.name] = {{row.default_value}, {}, ""};
}

bool Settings::is_default(absl::string_view name) const {
  const Setting& row = setting(name);
  const absl::string_view otherwise = row.default_value != nullptr ? row.default_value : "";
  if (!row.is_boolean()) return absl::StrJoin(texts(name), ",") == otherwise;
  return flag(name) == parse_bool(otherwise).value_or(false);
}

std::string Settings::describe(absl::string_view name) const {
  const Setting& row = setting(name);
  const Value* value = find(name);
  if (value == nullptr) return absl::StrCat("--", row.flag_name());
  const std::string texts = absl::StrJoin(value->texts, ",");
  switch (value->provenance) {
    case Provenance::kConfigFile:
      if (row.section == Section::kNone) {
        // A switch that the file spells otherwise.
        const bool is_mesh = name == "use_parallelism_config";
        return absl::StrCat(value->where, ": ",
                            is_mesh ? std::string(kMeshSection)
                                    : absl::StrCat("distributed_type: ", text("distributed_type")));
      }
      return absl::StrCat(value->where, ": ", row.key_name(), ": ", texts);
    case Provenance::kEnvironment: return absl::StrCat(value->where, "=", texts);
    default:
      return row.type == ValueType::kFlag ? absl::StrCat("--", row.flag_name())
                                          : absl::StrCat("--", row.flag_name(), "=", texts);
  }
}

std::string Settings::to_text(bool all) const {
  std::string text = absl::StrCat(
      "# configuration file: ", has_config_ ? config_path_ : std::string("none"), "\n");
  int left_out = 0;
  for (const Setting& row : all_settings()) {
    const Value* value = find(row.name);
    if (value == nullptr) continue;
    if (!all && value->provenance == Provenance::kDefault && row.default_value != nullptr &&
        value->texts.front() == row.default_value) {
      ++left_out;
      continue;
    }
    const std::string shown = row.is_secret ? "(hidden)" : absl::StrJoin(value->texts, ",");
    absl::StrAppend(&text, row.name, " = ", shown, "  (", accelerate::to_string(value->provenance),
                    value->where.empty() ? "" : ": ", value->where, ")\n");
  }
  if (left_out > 0) {
    absl::StrAppend(&text, "# ", left_out,
                    " others have their defaults; --print_config=all shows them\n");
  }
  return text;
}

}  // namespace accelerate::launcher::settings
