/// Environment variables read as values.
///
/// All read the current Runtime's environment unless they are given another. A variable that is set
/// to nothing is set: where a value is needed that is an error.
/// Errors: c10::ValueError naming the variable and its text.
/// Threads: those of the Environment.
/// Mirrors: accelerate utils/environment.py.
#pragma once

#include <cstdint>
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
std::string parse_choice_from_env(
    std::string_view key, std::string_view default_value = "no",
    const Environment& environment = Runtime::current().environment());

/// A whole number; nothing where unset.
std::optional<int64_t> parse_int_from_env(
    std::string_view key, const Environment& environment = Runtime::current().environment());

/// The first of the variables that is set to a number from 0 up; negative ones count as unset.
/// `default_value` where there is none.
int64_t get_int_from_env(const std::vector<std::string>& env_keys, int64_t default_value,
                         const Environment& environment = Runtime::current().environment());
std::optional<int64_t> get_int_from_env(
    const std::vector<std::string>& env_keys, std::nullopt_t default_value,
    const Environment& environment = Runtime::current().environment());

/// Lines "KEY=VALUE\n" in the given order, for a file that a shell or a launcher reads. Entries
/// whose key or value is empty or has one of `;<>`, a space or a line's end in it are left out with
/// a warning.
std::vector<std::string> convert_dict_to_env_variables(
    const std::vector<std::pair<std::string, std::string>>& current_env);

}  // namespace accelerate
