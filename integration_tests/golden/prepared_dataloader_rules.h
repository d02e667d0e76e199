/// The decisions about prepared data loaders; see decisions.h.
#pragma once

#include <vector>

#include "integration_tests/golden/decisions.h"

namespace accelerate::golden {

/// In the order in which they apply.
std::vector<Decision> prepared_dataloader_rules();

}  // namespace accelerate::golden
