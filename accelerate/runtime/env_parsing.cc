#include "accelerate/runtime/env_parsing.h"

#include <c10/util/Exception.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "accelerate/base/number_text.h"

namespace accelerate {

bool str_to_bool(std::string_view value) {
  const std::optional<bool> result = parse_bool(value);
  TORCH_CHECK_VALUE(result, "\"", value, "\" is neither true nor false");
  return *result;
}

bool parse_flag_from_env(std::string_view key, bool default_value, const Environment& environment) {
  const std::optional<std::string> text = environment.get(key);
  if (!text) return default_value;
  const std::optional<bool> result = parse_bool(*text);
  TORCH_CHECK_VALUE(result, key, "=\"", *text, "\" is neither true nor false");
  return *result;
}

std::optional<int64_t> parse_int_from_env(std::string_view key, const Environment& environment) {
  const std::optional<std::string> text = environment.get(key);
  if (!text) return std::nullopt;
  const std::optional<int64_t> value = parse_int(*text);
  TORCH_CHECK_VALUE(value, key, "=\"", *text, "\" is not a whole number");
  return value;
}

std::optional<int64_t> get_int_from_env(const std::vector<std::string>& env_keys,
                                        std::nullopt_t default_value,
                                        const Environment& environment) {
  for (const std::string& key : env_keys) {
    const std::optional<int64_t> value = parse_int_from_env(key, environment);
    if (value && *value >= 0) return value;
  }
  return default_value;
}

std::vector<std::string> convert_dict_to_env_variables(
    const std::vector<std::pair<std::string, std::string>>& current_env) {
  static constexpr std::string_view kForbidden = ";\n<> ";
  auto is_usable = [](const std::string& text) {
    return !text.empty() && text.find_first_of(kForbidden) == std::string::npos;
  };
  std::vector<std::string> lines;
  for (const auto& [key, value] : current_env) {
    if (is_usable(key) && is_usable(value)) {
      lines.push_back(absl::StrCat(key, "=", value, "\n"));
    } else {
      TORCH_WARN("skipping ", key, "=", value,
                 ": empty, or with one of ;<>, a space or a line end");
    }
  }
  return lines;
}

std::string EnvironmentValue::of_float(double value) { return float_text(value); }

EnvironmentScope::EnvironmentScope(Environment& environment, std::string prefix)
    : environment_(&environment), prefix_(std::move(prefix)) {
  for (auto& [name, value] : environment.variables()) {
    if (name.starts_with(*prefix_)) before_.emplace(name, value);
  }
}

EnvironmentScope::~EnvironmentScope() {
  if (environment_ == nullptr) return;
  if (prefix_) {
    for (const auto& [name, value] : environment_->variables()) {
      if (name.starts_with(*prefix_) && !before_.contains(name)) environment_->unset(name);
    }
  }
  for (auto& [name, value] : before_) {
    if (value) {
      environment_->set(name, *std::move(value));
    } else {
      environment_->unset(name);
    }
  }
}

EnvironmentScope patch_environment(
    const std::vector<std::pair<std::string, EnvironmentValue>>& variables,
    Environment& environment) {
  EnvironmentScope scope(environment);
  for (const auto& [key, value] : variables) {
    const std::string name = absl::AsciiStrToUpper(key);
    scope.before_.emplace(name, environment.get(name));  // of a name given twice: the first
    environment.set(name, value.text());
  }
  return scope;
}

EnvironmentScope clear_environment(Environment& environment) {
  EnvironmentScope scope(environment, "");
  for (const auto& [name, value] : scope.before_) environment.unset(name);
  return scope;
}

EnvironmentScope purge_accelerate_environment(Environment& environment) {
  return EnvironmentScope(environment, "ACCELERATE_");
}

}  // namespace accelerate
