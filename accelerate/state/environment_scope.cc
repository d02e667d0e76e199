#include "accelerate/state/environment_scope.h"

#include "absl/strings/ascii.h"
#include "accelerate/base/number_text.h"

namespace accelerate {

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
