/// Optimizers that keep other values in the parameters while training than those to evaluate.
///
/// Mirrors: optimizers with train() and eval(), to which accelerate's AcceleratedOptimizer
/// forwards.
#pragma once

namespace accelerate::optim {

class TrainMode {
 public:
  virtual ~TrainMode() = default;
  /// Before training steps. Does nothing if that is so already, as does eval.
  virtual void train() = 0;
  /// Before the model is evaluated or saved.
  virtual void eval() = 0;
};

}  // namespace accelerate::optim
