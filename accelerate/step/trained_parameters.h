/// Which tensors optimizers train in place of the parameters of a job's models.
///
/// All is local. Threads: the rank's thread.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/optim/clip_grad.h"

namespace accelerate {

class ModelState;

namespace internal {

struct TrainingState;

/// Whether the optimizer has this parameter, or one of the tensors that the model trains.
bool has_parameter(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter);
bool trains(const torch::optim::Optimizer& optimizer, const ModelState& model);

/// What optimizers train of some parameters.
struct TrainedTensors {
  /// Each tensor once, by the ranks that together have its elements.
  std::vector<GradientShards> shards;
  /// Whether they are the parameters themselves, of which each rank has the whole gradients.
  bool are_whole = true;
};
TrainedTensors trained_of(const TrainingState& training, const std::vector<at::Tensor>& parameters);

}  // namespace internal
}  // namespace accelerate
