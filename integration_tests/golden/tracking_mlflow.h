/// The cases of the MLflow tracker.
///
/// Threads: pure functions.
#pragma once

#include <vector>

#include <nlohmann/json.hpp>

#include "integration_tests/golden/decisions.h"

namespace accelerate::golden {

/// The answer to a case of kind "tracker" and tracker "mlflow". Python objects among its values,
/// which C++ has none of, are left out.
nlohmann::json replay_mlflow(const nlohmann::json& in);

std::vector<Decision> mlflow_tracking_rules();

}  // namespace accelerate::golden
