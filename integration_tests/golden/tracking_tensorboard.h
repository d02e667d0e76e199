/// The cases of the TensorBoard tracker.
///
/// Threads: pure functions.
#pragma once

#include <vector>

#include <nlohmann/json.hpp>

#include "integration_tests/golden/decisions.h"

namespace accelerate::golden {

/// The answer to a case of kind "tracker" and tracker "tensorboard". Values that are or hold Python
/// objects, which C++ has none of, are left out.
nlohmann::json replay_tensorboard(const nlohmann::json& in);

std::vector<Decision> tensorboard_tracking_rules();

}  // namespace accelerate::golden
