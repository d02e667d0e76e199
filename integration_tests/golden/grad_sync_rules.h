/// Where training steps differ from the peer's on purpose.
///
/// Threads: pure functions.
#pragma once

#include <vector>

#include "integration_tests/golden/decisions.h"

namespace accelerate::golden {

std::vector<Decision> grad_sync_rules();

}  // namespace accelerate::golden
