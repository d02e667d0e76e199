/// JSON whose numbers survive as text, which has neither infinities nor NaN: they are the strings
/// "inf", "-inf" and "nan".
///
/// Errors: c10::ValueError for values that are to be written, and are nested more deeply than what
///         is read back (kMaxJsonDepth).
#pragma once

#include <nlohmann/json.hpp>

namespace accelerate::internal {

/// Spells them, at any depth.
nlohmann::ordered_json spell_numbers(nlohmann::ordered_json value);
/// Makes numbers of such strings again.
nlohmann::ordered_json read_numbers(nlohmann::ordered_json value);

/// The same where such strings may be meant: they are {"number": "inf"}, ..., and an object with
/// this one key is {"number": {"number": ...}}.
nlohmann::ordered_json wrap_numbers(nlohmann::ordered_json value);
nlohmann::ordered_json unwrap_numbers(nlohmann::ordered_json value);

}  // namespace accelerate::internal
