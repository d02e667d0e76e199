/// Environment variables read as values, and changed for a while.
///
/// All read the current Runtime's environment unless they are given another. A variable that is set
/// to nothing is set: where a value is needed that is an error.
/// Errors: c10::ValueError naming the variable and its text.
/// Threads: those of the Environment.
/// Mirrors: accelerate utils/environment.py; utils/other.py, patch_environment and
///          clear_environment.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "accelerate/platform/environment.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {

/// y yes t true on 1 / n no f false off 0, in any case.
bool str_to_bool(std::string_view value);

/// `default_value` where unset.
bool parse_flag_from_env(std::string_view key, bool default_value = false,
                         const Environment& environment = Runtime::current().environment());

/// The text as it is; `default_value` where unset.
inline std::string parse_choice_from_env(
    std::string_view key, std::string_view default_value = "no",
    const Environment& environment = Runtime::current().environment()) {
  return environment.get(key).value_or(std::string(default_value));
}

/// A whole number; nothing where unset.
std::optional<int64_t> parse_int_from_env(
    std::string_view key, const Environment& environment = Runtime::current().environment());

/// The first of the variables that is set to a number from 0 up; negative ones count as unset.
/// `default_value` where there is none.
std::optional<int64_t> get_int_from_env(
    const std::vector<std::string>& env_keys, std::nullopt_t default_value,
    const Environment& environment = Runtime::current().environment());
inline int64_t get_int_from_env(const std::vector<std::string>& env_keys, int64_t default_value,
                                const Environment& environment = Runtime::current().environment()) {
  return get_int_from_env(env_keys, std::nullopt, environment).value_or(default_value);
}

/// Lines "KEY=VALUE\n" in the given order, for a file that a shell or a launcher reads. Entries
/// whose key or value is empty or has one of `;<>`, a space or a line's end in it are left out with
/// a warning.
std::vector<std::string> convert_dict_to_env_variables(
    const std::vector<std::pair<std::string, std::string>>& current_env);

// ---- Variables changed for a while.
//
//   const auto scope = patch_environment({{"accelerate_debug_mode", true}, {"rank", 3}});
//
// A scope changes the rank's Environment, never the process's own variables, and puts back what it
// promised when it ends, by an exception as well. Scopes nest; they end in the opposite order.
// Ownership: the Environment must outlive the scope.

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
