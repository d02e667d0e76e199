/// The engine of the user's loop: gradients are final after the backward pass but for their scale,
/// and optimizers step where the user says so.
///
/// Threads: the rank's thread.
#pragma once

#include <memory>
#include <vector>

#include "accelerate/precision/grad_scaler.h"
#include "accelerate/step/step_engine.h"
#include "accelerate/step/trained_parameters.h"
#include "accelerate/step/training_state.h"

namespace accelerate::internal {

class LoopEngine final : public StepEngine {
 public:
  using StepEngine::StepEngine;

  /// Autograd's, of the loss times the scale where losses are scaled.
  void backward(const at::Tensor& loss, const BackwardOptions& options) override {
    const std::shared_ptr<SharedScaler>& scaler = job_.training.precision.scaler();
    if (scaler == nullptr) return run_autograd(loss, options);
    scaler->begin_backward();
    run_autograd(scaler->scaler().scale(loss), options);
  }

  void finalise_gradients() override {
    for_each_alive(job_.training.optimizers, [&](const auto& optimizer) {
      optimizer->average_and_unscale_gradients(job_.gradients);
    });
  }

  at::Tensor clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm,
                            const ClipGradNormOptions& options) override {
    finalise_gradients();
    const TrainedTensors trained = trained_of(job_.training, parameters);
    return trained.are_whole
               ? clip_grad_norm_(parameters, max_norm, options)
               : clip_sharded_grad_norm_(trained.shards, max_norm, job_.device, options);
  }

  void clip_grad_value(const std::vector<at::Tensor>& parameters, double clip_value) override {
    finalise_gradients();
    for (const GradientShards& each : trained_of(job_.training, parameters).shards) {
      clip_grad_value_(each.parameters, clip_value);
    }
  }

 private:
  static void run_autograd(const at::Tensor& loss, const BackwardOptions& options) {
    if (!options.inputs) {
      return loss.backward(options.gradient, options.retain_graph, options.create_graph);
    }
    loss.backward(options.gradient, options.retain_graph, options.create_graph,
                  at::TensorList(*options.inputs));
  }
};

}  // namespace accelerate::internal
