/// The trackers that stand on a Python package of their vendor's: which calls they make on it.
///
/// Threads: pure functions.
#pragma once

#include <vector>

#include <nlohmann/json.hpp>

#include "integration_tests/golden/decisions.h"

namespace accelerate::golden {

/// The answer to a case of kind "tracker". Errors: CaseError.
nlohmann::json replay_comet_ml(const nlohmann::json& in);
nlohmann::json replay_clearml(const nlohmann::json& in);
nlohmann::json replay_aim(const nlohmann::json& in);
nlohmann::json replay_swanlab(const nlohmann::json& in);

/// What these do otherwise than the peer.
std::vector<Decision> bridge_tracking_rules();

}  // namespace accelerate::golden
