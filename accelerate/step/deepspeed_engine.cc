#include "accelerate/step/deepspeed_engine.h"

namespace accelerate {

void DeepSpeedEngineWrapper::backward(const at::Tensor& loss, bool sync_gradients,
                                      const BackwardOptions& options) {
  step_.engine_backward(loss, sync_gradients, options);
}

std::optional<double> DeepSpeedEngineWrapper::get_global_grad_norm() const {
  const at::Tensor norm = step_.engine_norm();
  return norm.defined() ? std::optional(norm.item<double>()) : std::nullopt;
}

}  // namespace accelerate
