/// What becomes of the models of quantization_config worked out from their names: the independent
/// side of the decisions about quantised models. Answers are in the form of quantization_models.h.
///
/// Threads: pure functions.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace accelerate::golden {

/// The answer to a case of kind "quantize" or "load" whose bitsandbytes is a good one and whose
/// rank computes on the CPU where it has no accelerator.
nlohmann::json quantize_by_hand(const nlohmann::json& in);

/// That to a case of kind "device_map" with an inferred map. `first_fault`: as for
/// place_by_hand(). Null for limits that are an error.
nlohmann::json infer_by_hand(const nlohmann::json& in, int first_fault);

/// Whether the map has the CPU, or the disk, for something that is quantised.
bool offloads(const nlohmann::json& in, const nlohmann::json& device_map,
              const std::string& device);

/// The weights of layers that are quantised.
std::vector<std::string> quantized_weights(const nlohmann::json& in);

/// The layers that are quantised.
nlohmann::json quantized_layers(const nlohmann::json& in);

/// Its dtype, and the one in which weights in 4 bits are used.
std::string remaining_dtype(const nlohmann::json& in);
std::string compute_dtype(const nlohmann::json& in);

}  // namespace accelerate::golden
