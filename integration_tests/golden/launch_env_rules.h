/// The decisions about the launcher; see decisions.h.
#pragma once

#include <vector>

#include "integration_tests/golden/decisions.h"

namespace accelerate::golden {

/// In the order in which they apply.
std::vector<Decision> launch_env_rules();

}  // namespace accelerate::golden
