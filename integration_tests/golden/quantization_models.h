/// The cases of quantization_config that have a model: which layers are quantised, on which devices
/// they are, and what becomes of whole models.
///
/// Threads: they run a simulated rank, whose accelerators are H100s where the case has some.
#pragma once

#include <optional>

#include <nlohmann/json.hpp>

namespace accelerate::golden {

/// Nothing for a kind that is not one of these. The answer has, in place of the names that have
/// another dtype than most, the dtype of each tensor, and in place of the log's sentences what they
/// are about.
std::optional<nlohmann::json> run_quantization_models(const nlohmann::json& in);

/// Brings a recorded answer into that form.
void take_quantization_facts(const nlohmann::json& in, nlohmann::json& recorded);

}  // namespace accelerate::golden
