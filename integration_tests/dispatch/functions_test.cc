// The functions around dispatched models, and what they refuse.
// One shape of the cluster each: placements name its devices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "integration_tests/dispatch/models.h"
