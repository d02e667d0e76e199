/// What a forward pass keeps for its backward pass.
///
/// Threads: one; runs clusters.
#pragma once

#include <cstdint>

#include "integration_tests/tensor/formula_model.h"

namespace accelerate {

/// The bytes that one block more of the training's model keeps on a rank between the forward and
/// the backward pass, in blocks of 512.
int64_t activations_of_a_block(FormulaTraining training);

}  // namespace accelerate
