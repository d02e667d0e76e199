/// PyTorch's names of dtypes, as cases have them.
///
/// Errors:  CaseError for a name or a dtype that has no counterpart.
/// Threads: pure functions.
#pragma once

#include <string>

#include <c10/core/ScalarType.h>
#include <nlohmann/json.hpp>

namespace accelerate::golden {

/// "bfloat16", also behind "torch.", or {"$dtype": "bfloat16"}.
at::ScalarType dtype_of(const nlohmann::json& name);
std::string name_of(at::ScalarType dtype);

}  // namespace accelerate::golden
