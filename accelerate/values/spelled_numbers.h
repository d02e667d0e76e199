/// JSON with infinities and NaN, which JSON texts do not have: they are the strings "inf", "-inf"
/// and "nan".
///
/// Errors: c10::ValueError for values to be written that are nested more deeply than the reader
///         accepts (kMaxJsonDepth).
#pragma once

#include <nlohmann/json.hpp>

namespace accelerate::internal {

/// Replaces such numbers by strings, at any depth.
nlohmann::ordered_json spell_numbers(nlohmann::ordered_json value);
/// Replaces such strings by numbers.
nlohmann::ordered_json read_numbers(nlohmann::ordered_json value);

/// The same for values that may hold such strings as strings: the numbers are {"number": "inf"},
/// ..., and an object with this one key is {"number": {"number": ...}}.
nlohmann::ordered_json wrap_numbers(nlohmann::ordered_json value);
nlohmann::ordered_json unwrap_numbers(nlohmann::ordered_json value);

}  // namespace accelerate::internal
