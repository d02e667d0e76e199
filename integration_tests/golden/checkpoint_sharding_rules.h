/// The decisions about files with weights; see decisions.h.
#pragma once

#include <vector>

#include "integration_tests/golden/decisions.h"

namespace accelerate::golden {

std::vector<Decision> checkpoint_sharding_rules();

}  // namespace accelerate::golden
