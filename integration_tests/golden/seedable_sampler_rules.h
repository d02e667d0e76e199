/// The decisions about samplers and seeds; see decisions.h.
#pragma once

#include <vector>

#include "integration_tests/golden/decisions.h"

namespace accelerate::golden {

std::vector<Decision> seedable_sampler_rules();

}  // namespace accelerate::golden
