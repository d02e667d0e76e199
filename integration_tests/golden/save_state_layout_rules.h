/// Where checkpoints of the whole training differ from the peer's on purpose.
#pragma once

#include <vector>

#include "integration_tests/golden/decisions.h"

namespace accelerate::golden {

std::vector<Decision> save_state_layout_rules();

}  // namespace accelerate::golden
