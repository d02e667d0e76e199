/// What the configuration of a transformer says about the axes that may divide it: the JSON of its
/// config.json, or null for a model without one.
///
/// Errors:  c10::ValueError.
/// Local. Threads: pure functions.
/// Mirrors: accelerate utils/other.py, get_model_tp_size; what preparing a model for context or
///          sequence parallelism refuses.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/config/parallelism_config.h"

namespace accelerate {

/// How many ranks divide the model's layers: what the model itself says, or else "tp_size" in its
/// configuration's "distributed_config"; absent: its layers are whole.
/// Errors: for a "tp_size" that is not a whole number.
std::optional<int64_t> get_model_tp_size(std::optional<int64_t> tp_size,
                                         const nlohmann::json& config);

/// Refuses a model whose layers need the whole sequence on one rank. Along `cp` all layers must be
/// of type "full_attention", because their masks are dropped; a "sliding_window" without
/// "layer_types" counts as "sliding_attention". Along `sp` no layer may keep a recurrent state, as
/// those do in whose type "linear_attention" occurs. The configuration of a model's text part,
/// "text_config", comes before its own.
/// Errors: for such layers, naming their types and `model_class`, and for another axis.
void check_attention_layers(const nlohmann::json& config, MeshAxis axis,
                            const std::string& model_class);

/// The same for what a model says of its layers (ModelStructure::layer_types).
void check_attention_layers(const torch::nn::Module& model, MeshAxis axis);

}  // namespace accelerate
