/// JSON objects merged, and JSON with infinities and NaN, which JSON texts do not have: they are
/// the strings "inf", "-inf" and "nan".
///
/// Errors:  c10::ValueError; for values to be written also if they are nested more deeply than the
///          reader accepts (kMaxJsonDepth).
/// Threads: pure functions.
#pragma once

#include <nlohmann/json.hpp>

namespace accelerate {

/// `destination` with the entries of `source`: objects are merged, anything else replaces what is
/// there. Errors: c10::ValueError naming the key at which one side has an object with entries and
/// the other has something else.
/// Mirrors: accelerate utils/other.py, merge_dicts.
nlohmann::json merge_dicts(const nlohmann::json& source, nlohmann::json destination);

namespace internal {

/// Replaces non-finite numbers by their strings, at any depth.
nlohmann::ordered_json spell_numbers(nlohmann::ordered_json value);
/// Replaces such strings by the numbers.
nlohmann::ordered_json read_numbers(nlohmann::ordered_json value);

/// The same for values that may hold such strings as strings: the numbers are {"number": "inf"},
/// ..., and an object with this one key is {"number": {"number": ...}}.
nlohmann::ordered_json wrap_numbers(nlohmann::ordered_json value);
nlohmann::ordered_json unwrap_numbers(nlohmann::ordered_json value);

}  // namespace internal
}  // namespace accelerate
