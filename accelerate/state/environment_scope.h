/// Environment variables changed for a while.
///
///   const auto scope = patch_environment({{"accelerate_debug_mode", true}, {"rank", 3}});
///
/// A scope changes the rank's Environment, never the process's own variables, and puts back what it
/// promised when it ends, by an exception as well. Scopes nest; they end in the opposite order.
/// Ownership: the Environment must outlive the scope.
/// Threads: those of the Environment.
/// Mirrors: accelerate utils/other.py, patch_environment and clear_environment;
/// utils/environment.py,
///          purge_accelerate_environment.
#pragma once

#include <concepts>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "accelerate/platform/environment.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {

/// The text that HF Accelerate writes for a value: "True", "2", "0.5", "None", text as it is.
class EnvironmentValue {
 public:
  EnvironmentValue(std::string text) : text_(std::move(text)) {}
  EnvironmentValue(std::string_view text) : text_(text) {}
  EnvironmentValue(const char* text) : text_(text) {}
  EnvironmentValue(std::nullptr_t) : text_("None") {}
  EnvironmentValue(std::same_as<bool> auto value) : text_(value ? "True" : "False") {}
  template <std::integral Integer>
    requires(!std::same_as<Integer, bool>)
  EnvironmentValue(Integer value) : text_(std::to_string(value)) {}
  EnvironmentValue(std::floating_point auto value) : text_(of_float(value)) {}

  const std::string& text() const { return text_; }

 private:
  static std::string of_float(double value);

  std::string text_;
};

class [[nodiscard]] EnvironmentScope {
 public:
  ~EnvironmentScope();
  EnvironmentScope(EnvironmentScope&& other) noexcept
      : environment_(std::exchange(other.environment_, nullptr)),
        prefix_(std::move(other.prefix_)),
        before_(std::move(other.before_)) {}
  EnvironmentScope(const EnvironmentScope&) = delete;
  EnvironmentScope& operator=(const EnvironmentScope&) = delete;

 private:
  friend EnvironmentScope patch_environment(
      const std::vector<std::pair<std::string, EnvironmentValue>>& variables,
      Environment& environment);
  friend EnvironmentScope clear_environment(Environment& environment);
  friend EnvironmentScope purge_accelerate_environment(Environment& environment);

  explicit EnvironmentScope(Environment& environment) : environment_(&environment) {}
  // Everything with that prefix is to be as it is now.
  EnvironmentScope(Environment& environment, std::string prefix);

  Environment* environment_;  // null: moved from
  std::optional<std::string> prefix_;
  std::map<std::string, std::optional<std::string>> before_;
};

/// Sets the variables, their names in upper case, and restores them at the end; others that are set
/// or unset meanwhile stay so. Local.
EnvironmentScope patch_environment(
    const std::vector<std::pair<std::string, EnvironmentValue>>& variables,
    Environment& environment = Runtime::current().environment());

/// No variable is set, until at the end all are again as they were before. Local.
EnvironmentScope clear_environment(Environment& environment = Runtime::current().environment());

/// At the end all ACCELERATE_* variables are as they were before; others stay as they are. Local.
EnvironmentScope purge_accelerate_environment(
    Environment& environment = Runtime::current().environment());

}  // namespace accelerate
