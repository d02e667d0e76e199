/// What ranks have of a model's weights and of its optimizer's moments, put together to the tensors
/// of the whole model.
///
/// Threads: functions of their arguments.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/adamw.h>

#include "accelerate/forward/model_state.h"
#include "accelerate/parallel/layout/placement.h"

namespace accelerate {

/// What a rank has of a tensor, and where that is.
struct PlacedPartOfRank {
  std::string name = {};
  std::vector<int64_t> shape = {};  ///< of the whole tensor
  std::vector<PlacedBox> boxes = {};
  at::Tensor values = {};
};
using PlacedParts = std::vector<PlacedPartOfRank>;
using WholeTensors = std::map<std::string, at::Tensor>;

/// The rank's parts of "weight of NAME", and of "mean of NAME" and "square of NAME" where the
/// optimizer has these moments; copies on the host. The optimizer is the model's. Local.
PlacedParts placed_parts(const ModelState& model, const torch::optim::AdamW& adam, int rank);

/// The whole tensors, of the parts of all ranks. Expects each element on some rank, and on each
/// that has it the same.
WholeTensors assembled(const std::vector<PlacedParts>& ranks);

/// Expects the same tensors, bit by bit.
void expect_equal(const WholeTensors& a, const WholeTensors& b);

}  // namespace accelerate
