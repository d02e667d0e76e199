/// What HF Accelerate hands to deepspeed.initialize when it prepares objects, and gives back.
///
/// Threads: pure functions.
#pragma once

#include <nlohmann/json.hpp>

namespace accelerate::golden {

/// Replaces DeepSpeed's objects in the answer of a preparation by those of the library, and takes
/// what was handed to DeepSpeed out of it. Only where both are what HF Accelerate's algorithm gives
/// for these objects: another answer stays, and fails its case.
void give_objects_of_the_library(const nlohmann::json& in, nlohmann::json& out);

}  // namespace accelerate::golden
