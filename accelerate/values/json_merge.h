/// Merging JSON objects.
///
/// Threads: pure functions.
/// Mirrors: accelerate utils/other.py, merge_dicts.
#pragma once

#include <nlohmann/json.hpp>

namespace accelerate {

/// `destination` with the entries of `source`: objects are merged, anything else replaces what is
/// there. Errors: c10::ValueError naming the key at which one side has an object with entries and
/// the other has something else.
nlohmann::json merge_dicts(const nlohmann::json& source, nlohmann::json destination);

}  // namespace accelerate
