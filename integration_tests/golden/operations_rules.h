/// The decisions about operations on nested values; see decisions.h.
#pragma once

#include <vector>

#include "integration_tests/golden/decisions.h"

namespace accelerate::golden {

std::vector<Decision> operations_rules();

}  // namespace accelerate::golden
