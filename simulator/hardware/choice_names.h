/// The choices of a cluster's text and JSON, by their names.
///
/// Threads: pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "simulator/hardware/device_model.h"

namespace accelerate::simulator::internal {

/// "switch", "mesh", "pcie", "torus"; "rails", "fat-tree", "ethernet"; "ideal", "measured";
/// "eager", "transformer_engine"; of MathType "fp64", "fp32", "fp16", "bf16", "fp8", "int8".
std::string name_of(NodeFabric fabric);
std::string name_of(NetworkFabric fabric);
std::string name_of(Efficiency efficiency);
std::string name_of(KernelSet kernels);
/// The names that a user may choose; a torus follows from the device.
template <typename Choice>
const std::vector<std::string>& choice_names();
template <typename Choice>
std::optional<Choice> choice_of(absl::string_view name);

}  // namespace accelerate::simulator::internal
