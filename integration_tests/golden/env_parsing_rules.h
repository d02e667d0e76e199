/// The decisions about environment helpers and retrying; see decisions.h.
#pragma once

#include <vector>

#include "integration_tests/golden/decisions.h"

namespace accelerate::golden {

/// In the order in which they apply.
std::vector<Decision> env_parsing_rules();

}  // namespace accelerate::golden
