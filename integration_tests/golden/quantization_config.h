/// The options of quantised weights as cases have them.
///
/// Errors:  CaseError for an unknown option, DoesNotCompile for a value of another type, and those
///          of resolve().
/// Threads: pure functions.
#pragma once

#include <c10/core/ScalarType.h>
#include <nlohmann/json.hpp>

#include "accelerate/quantization/bnb_config.h"

namespace accelerate::golden {

/// Resolved.
BnbQuantizationConfig quantization_config_of(const nlohmann::json& kwargs);

/// A number, or {"$float": "inf"}, which JSON lacks.
bool is_number(const nlohmann::json& value);
nlohmann::json number_json(double number);

nlohmann::json dtype_json(c10::ScalarType dtype);

}  // namespace accelerate::golden
