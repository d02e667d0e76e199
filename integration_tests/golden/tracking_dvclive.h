/// The cases of the DVCLive tracker.
///
/// Threads: pure functions.
#pragma once

#include <vector>

#include <nlohmann/json.hpp>

#include "integration_tests/golden/decisions.h"

namespace accelerate::golden {

/// The answer to a case of kind "tracker" and tracker "dvclive". Values that are or hold Python
/// objects, which C++ has none of, are left out.
nlohmann::json replay_dvclive(const nlohmann::json& in);

std::vector<Decision> dvclive_tracking_rules();

}  // namespace accelerate::golden
