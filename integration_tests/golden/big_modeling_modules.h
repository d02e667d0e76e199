/// The kinds of big_modeling cases about modules and their tensors: names, ties, one tensor moved
/// or replaced, and models that are built without memory.
#pragma once

#include <optional>

#include <nlohmann/json.hpp>

namespace accelerate::golden {

/// Nothing for another kind.
std::optional<nlohmann::json> run_big_modeling_modules(const nlohmann::json& in);

}  // namespace accelerate::golden
