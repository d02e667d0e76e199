#include "launch/settings/config_file.h"

#include <algorithm>
#include <filesystem>
#include <regex>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "accelerate/base/document.h"
#include "accelerate/base/enums.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/message_text.h"
#include "accelerate/base/status.h"
#include "accelerate/base/yaml_reader.h"
#include "launch/process/process_plan.h"
#include "launch/process/replace_file.h"
#include "launch/settings/schema.h"

namespace accelerate::launcher::settings {
namespace {

using Json = nlohmann::ordered_json;

// Whether a reader of YAML 1.1 or 1.2 takes a plain word for something else than a text.
bool is_yaml_keyword(const std::string& word) {
  // Dates, numbers of YAML 1.2, and numbers to the base of 60.
  static const std::regex kOtherWords(
      "[0-9]{4}-[0-9][-0-9Tt:. Z+]*|"
      "[-+]?([.][0-9]+|[0-9]+([.][0-9]*)?)([eE][-+]?[0-9]+)?|0o[0-7]+|"
      "[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+([.][0-9_]*)?");
  const absl::string_view kWords[] = {"y", "Y", "n", "N", "=", "<<"};
  return !internal::yaml_word(word).is_string() || absl::c_linear_search(kWords, word) ||
         std::regex_match(word, kOtherWords);
}

// Sections of older releases that nothing reads any more.
constexpr const char* kForgottenKeys[] = {"ipex_config", "mpirun_config.mpirun_ccl"};

bool is_forgotten(absl::string_view key) { return absl::c_linear_search(kForgottenKeys, key); }

// The text of a scalar in a file.
std::string scalar_word(const Setting& row, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  // Unquoted, YAML takes `no` for a truth value.
  const bool may_be_no = absl::StrContains(row.choices != nullptr ? row.choices : "", "no") ||
                         absl::string_view(row.name) == "distributed_type";
  if (value.is_boolean() && !value.get<bool>() && may_be_no && !row.is_boolean()) {
    return absl::string_view(row.name) == "distributed_type" ? "NO" : "no";
  }
  return value.dump();
}

class Checker {
 public:
  explicit Checker(ConfigFile file) : config_(std::move(file)) {}

  absl::StatusOr<ConfigFile> check() {
    Json values = std::exchange(config_.values, Json::object());
    if (values.is_null()) {
      return invalid(config_.path, ": is empty; accelerate config makes a new one");
    }
    if (!values.is_object()) {
      return invalid(config_.path, ": has no keys");
    }
    Json& type = values["distributed_type"];
    // A simulated cluster is what SPEC says.
    if (type.is_null() && values.contains("simulate")) type = "NO";
    if (type.is_null()) {
      return invalid(
          config_.path,
          ": A `distributed_type` must be specified in the config file: NO, MULTI_GPU, FSDP, ...");
    }
    convert_old_keys(values);
    const Json& environment = values["compute_environment"];
    const bool is_sagemaker =
        environment == to_string(ComputeEnvironment::kAmazonSageMaker) || environment == 1;
    kind_ = is_sagemaker ? Section::kSageMaker : Section::kTop;
    for (const auto& [key, value] : values.items()) take(key, value);
    if (!unknown_.empty()) {
      std::ranges::sort(unknown_);
      return invalid(config_.path, ": unknown keys: ", absl::StrJoin(unknown_, ", "),
                     "; correct or remove them");
    }
    if (problem_.ok()) problem_ = check_required();
    if (!problem_.ok()) return problem_;
    return std::move(config_);
  }

 private:
  absl::Status error(const std::string& key, absl::string_view message) const {
    const auto line = config_.lines.find(key);
    const std::string place = line == config_.lines.end() ? "" : absl::StrCat(":", line->second);
    return invalid(config_.path, place, ": ", key, ": ", message);
  }

  // Converts the keys of older releases.
  void convert_old_keys(Json& values) {
    Json& environment = values["compute_environment"];
    if (environment.is_null()) environment = to_string(ComputeEnvironment::kLocalMachine);
    if (values.contains("fp16")) {
      const bool is_on = values["fp16"] == true;
      if (!values.contains("mixed_precision") && is_on) values["mixed_precision"] = "fp16";
      values.erase("fp16");
    }
    if (values.contains("dynamo_backend")) {
      const Json backend = values["dynamo_backend"];
      values["dynamo_config"] = Json::object();
      if (backend.is_string() && absl::AsciiStrToUpper(backend.get<std::string>()) != "NO") {
        values["dynamo_config"]["dynamo_backend"] = backend;
      }
      values.erase("dynamo_backend");
    }
    Json& type = values["distributed_type"];
    if (type == false) type = "NO";
    if (type == "TPU") type = "XLA";
  }

  // `word` is the key without its section.
  void note_unknown(const std::string& key, Section section, const std::string& word) {
    std::string text = absl::StrCat("'", key, "'");
    const auto line = config_.lines.find(key);
    if (line != config_.lines.end()) absl::StrAppend(&text, " in line ", line->second);
    const std::string hint = did_you_mean(word, known_keys(section));
    if (!hint.empty()) absl::StrAppend(&text, " (", absl::StripPrefix(hint, "; "), ")");
    unknown_.push_back(std::move(text));
  }

  void take(const std::string& key, const Json& value) {
    if (is_forgotten(key)) return;
    const SectionName* section = find_section(key);
    const bool may_have =
        section != nullptr && (kind_ == Section::kTop || section->section == Section::kDynamo);
    if (!may_have) {
      const Setting* row = find_key(kind_, key);
      if (row == nullptr) return note_unknown(key, kind_, key);
      return problem_.Update(check_one(key, *row, value, config_.values[key]));
    }
    Json& map = config_.values[key] = Json::object();
    if (value.is_null()) return;
    if (!value.is_object()) return problem_.Update(error(key, "expected keys and values"));
    std::map<const Setting*, std::string> spellings;
    for (const auto& [inner, inner_value] : value.items()) {
      const std::string path = absl::StrCat(key, ".", inner);
      if (is_forgotten(path)) continue;
      const Setting* row = find_key(section->section, inner);
      if (row == nullptr) {
        note_unknown(path, section->section, inner);
        continue;
      }
      const auto [first, is_new] = spellings.emplace(row, inner);
      problem_.Update(
          is_new ? check_one(path, *row, inner_value, map[inner])
                 : error(path, absl::StrCat("is the same as ", first->second, "; keep one")));
    }
  }

  absl::Status check_one(const std::string& key, const Setting& row, const Json& value,
                         Json& result) {
    result = value;
    if (value.is_null()) return absl::OkStatus();
    if (row.type == ValueType::kTexts) {
      if (value.is_string()) result = Json::array({value});
      for (const Json& item : result) {
        if (!item.is_string()) return error(key, "expected a list of texts");
      }
      return absl::OkStatus();
    }
    if (row.type == ValueType::kBools && value.is_array()) {
      std::vector<std::string> words;
      for (const Json& item : value) words.push_back(scalar_word(row, item));
      result = absl::StrJoin(words, ",");
    }
    // These arguments go to AWS as they are.
    if (absl::string_view(row.name) == "additional_args" && value.is_object()) {
      return absl::OkStatus();
    }
    if (result.is_structured()) return error(key, "expected one value");
    const std::string word = schema_text(row, scalar_word(row, result));
    if (absl::Status ok = check_value(row, word); !ok.ok()) return error(key, ok.message());
    // A word that YAML took for a truth value.
    if (result.is_boolean() && !row.is_boolean() && word == "no") result = word;
    return absl::OkStatus();
  }

  absl::Status check_required() {
    const Json& type = config_.values["distributed_type"];
    const absl::Span<const char* const> types =
        kind_ == Section::kSageMaker ? sagemaker_distributed_types() : distributed_types();
    const std::vector<std::string> words(types.begin(), types.end());
    const std::string word = type.is_string() ? type.get<std::string>() : type.dump();
    if (!absl::c_linear_search(words, word)) {
      return error("distributed_type",
                   absl::StrCat("expected one of ", absl::StrJoin(words, ", "), ", not \"", word,
                                "\"", did_you_mean(word, words)));
    }
    if (kind_ == Section::kTop) {
      if (word == "NO" && !config_.values.contains("num_processes") &&
          !config_.values.contains("simulate")) {
        config_.values["num_processes"] = 1;
      }
      return absl::OkStatus();
    }
    for (const char* required : {"ec2_instance_type", "iam_role_name"}) {
      if (!config_.values.contains(required) || config_.values[required].is_null()) {
        return invalid(config_.path, ": a SageMaker configuration needs ", required);
      }
    }
    return absl::OkStatus();
  }

  Section kind_ = Section::kTop;
  ConfigFile config_;
  std::vector<std::string> unknown_;  // Named all at once, before any other problem.
  absl::Status problem_;              // The first one.
};

// Neither nulls nor empty maps; of a simulated cluster nothing that it does not have.
Json written_fields(const ConfigFile& config) {
  Json fields = all_fields(config);
  if (fields.contains("simulate")) {
    if (fields["num_processes"] == -1) fields.erase("num_processes");
    if (fields["distributed_type"] == "NO") fields.erase("distributed_type");
  }
  for (auto it = fields.begin(); it != fields.end();) {
    const bool is_nothing = it->is_null() || (it->is_structured() && it->empty());
    it = is_nothing ? fields.erase(it) : std::next(it);
  }
  return fields;
}

// $HF_HOME, else the folder `below` the one that the variable or HOME/`usual` names.
std::string home_of(absl::Span<const std::string> environment, const char* variable,
                    const char* usual, const char* below) {
  std::string home = process::environment_value(environment, "HF_HOME");
  if (!home.empty()) return home;
  home = process::environment_value(environment, variable);
  if (home.empty()) home = absl::StrCat(process::environment_value(environment, "HOME"), usual);
  return absl::StrCat(home, below);
}

// The `.json` one if only that is there.
std::string default_file_in(const std::string& folder) {
  const std::string yaml = absl::StrCat(folder, "/default_config.yaml");
  const std::string json = absl::StrCat(folder, "/default_config.json");
  return !file_exists(yaml) && file_exists(json) ? json : yaml;
}

Json typed_default(const Setting& row) {
  if (row.default_value == nullptr) return nullptr;
  const std::string text = row.default_value;
  if (row.is_boolean()) return *parse_bool(text);
  if (row.type == ValueType::kInt) return Json::parse(text);
  return text;
}

}  // namespace

bool ConfigFile::is_sagemaker() const {
  const auto found = values.find("compute_environment");
  return found != values.end() && *found == to_string(ComputeEnvironment::kAmazonSageMaker);
}

ConfigFormat config_format(absl::string_view path) {
  return absl::EndsWith(path, ".json") ? ConfigFormat::kJson : ConfigFormat::kYaml;
}

std::string default_config_path(absl::Span<const std::string> environment) {
  return default_file_in(
      absl::StrCat(home_of(environment, "XDG_CONFIG_HOME", "/.config", ""), "/accelerate-cpp"));
}

std::string found_default_config(absl::Span<const std::string> environment) {
  const std::string own = default_config_path(environment);
  const std::string peers = default_file_in(absl::StrCat(
      home_of(environment, "XDG_CACHE_HOME", "/.cache", "/huggingface"), "/accelerate"));
  return !file_exists(own) && file_exists(peers) ? peers : own;
}

absl::StatusOr<ConfigFile> load_config_file(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) {
    return absl::NotFoundError(
        absl::StrCat("there is no configuration file ", path,
                     "; name one that there is, or make the default one with accelerate config"));
  }
  const std::optional<std::string> text = read_text(path);
  if (!text) return invalid(path, ": cannot be read");
  return parse_config(*text, config_format(path), path);
}

absl::StatusOr<ConfigFile> parse_config(const std::string& text, ConfigFormat format,
                                        const std::string& path) {
  if (!is_utf8(text)) return invalid(path, ": is not UTF-8");
  return as_status(absl::StatusCode::kInvalidArgument, [&]() -> absl::StatusOr<ConfigFile> {
    const auto read = format == ConfigFormat::kJson ? &Document::json : &Document::yaml;
    // The last of two equal keys counts, as PyYAML and Python's json have it.
    const Document document = read(text, {.name = path, .last_key_counts = true});
    ConfigFile file = {.path = path, .values = document.value(), .notes = document.notes()};
    for (const auto& [pointer, line] : document.lines()) {
      file.lines[absl::StrReplaceAll(pointer.substr(1), {{"/", "."}, {"~1", "/"}, {"~0", "~"}})] =
          line;
    }
    return Checker(std::move(file)).check();
  });
}

nlohmann::ordered_json all_fields(const ConfigFile& config) {
  const bool is_sagemaker = config.is_sagemaker();
  Json fields = Json::object();
  for (const Setting& row : all_settings()) {
    const bool is_field = is_sagemaker ? row.section == Section::kSageMaker || row.in_sagemaker
                                       : row.section == Section::kTop;
    // A file without keys of ours is HF Accelerate's as well.
    if (is_field && row.origin != SettingOrigin::kOurs) {
      fields[row.key_name()] = typed_default(row);
    }
  }
  // Not defaults of a run, but of a file.
  fields["mixed_precision"] = nullptr;
  if (is_sagemaker) {
    fields["num_machines"] = 1;
    fields["gpu_ids"] = "all";
    fields["base_job_name"] = "accelerate-sagemaker-1";
  } else {
    fields["num_processes"] = -1;
    fields["machine_rank"] = 0;
    fields["num_machines"] = 1;
    fields["main_training_function"] = "main";
  }
  for (const SectionName& section : all_sections()) {
    if (!is_sagemaker || section.section == Section::kDynamo) fields[section.key] = Json::object();
  }
  for (const auto& [key, value] : config.values.items()) fields[key] = value;
  return fields;
}

std::string config_to_yaml(const ConfigFile& config) {
  const Json fields = written_fields(config);
  if (fields.empty()) return "";
  return yaml_text(fields,
                   {.width = std::string::npos, .unicode = true, .is_keyword = is_yaml_keyword});
}

std::string config_to_json(const ConfigFile& config) {
  return absl::StrCat(nlohmann::json(written_fields(config)).dump(2), "\n");
}

absl::Status write_config_file(const ConfigFile& config, const std::string& path) {
  const std::string text =
      config_format(path) == ConfigFormat::kJson ? config_to_json(config) : config_to_yaml(config);
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code ignored;
  if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
  return process::replace_file(path, text);
}

absl::StatusOr<ConfigFile> basic_config(absl::string_view mixed_precision, const Machine& machine) {
  const std::string precision = absl::AsciiStrToLower(mixed_precision);
  ACCELERATE_RETURN_IF_ERROR(
      in_file("mixed_precision", check_value(setting("mixed_precision"), precision)));
  ConfigFile config;
  const bool is_distributed = machine.devices > 1;
  config.values["compute_environment"] = "LOCAL_MACHINE";
  config.values["distributed_type"] =
      !is_distributed ? "NO"
      : machine.device_kind == "tpu"
          ? "XLA"
          : absl::StrCat("MULTI_", absl::AsciiStrToUpper(machine.device_kind));
  config.values["mixed_precision"] = precision;
  config.values["use_cpu"] = machine.devices == 0;
  config.values["num_processes"] = std::max(machine.devices, 1);
  config.values["debug"] = false;
  config.values["enable_cpu_affinity"] = false;
  return config;
}

absl::StatusOr<bool> write_basic_config(absl::string_view mixed_precision, const std::string& path,
                                        const Machine& machine) {
  if (file_exists(path)) return false;
  ACCELERATE_ASSIGN_OR_RETURN(const ConfigFile config, basic_config(mixed_precision, machine));
  ACCELERATE_RETURN_IF_ERROR(write_config_file(config, path));
  return true;
}

}  // namespace accelerate::launcher::settings
