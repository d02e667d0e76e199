/// The decisions about trackers; see decisions.h.
#pragma once

#include <vector>

#include "integration_tests/golden/decisions.h"

namespace accelerate::golden {

/// In the order in which they apply.
std::vector<Decision> tracking_rules();

}  // namespace accelerate::golden
