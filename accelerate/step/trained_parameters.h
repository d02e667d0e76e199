/// Which tensors optimizers train in place of the parameters of a job's models.
///
/// All is local. Threads: the rank's thread.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/optim/clip_grad.h"

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace accelerate {

class ModelState;

namespace internal {

struct TrainingState;

/// Whether the optimizer has this parameter, or one of the tensors that the model trains.
bool has_parameter(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter);
bool trains(const torch::optim::Optimizer& optimizer, const ModelState& model);

/// What is trained in place of the parameters, each tensor once, by the ranks that together have
/// its elements.
std::vector<GradientShards> trained_of(const TrainingState& training,
                                       const std::vector<at::Tensor>& parameters);

}  // namespace internal
}  // namespace accelerate
