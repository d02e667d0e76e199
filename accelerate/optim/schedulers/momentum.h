/// The momentum of a parameter group, whatever its optimizer calls it.
///
/// That is the first of Adam's `betas`, and SGD's and RMSprop's `momentum`. Options of an optimizer
/// of one's own take part by deriving from HasMomentum.
#pragma once

#include <cstddef>
#include <vector>

namespace torch::optim {
class Optimizer;
class OptimizerOptions;
}  // namespace torch::optim

namespace accelerate::optim {

class HasMomentum {
 public:
  virtual ~HasMomentum() = default;
  virtual double momentum_value() const = 0;
  virtual void set_momentum_value(double momentum) = 0;
};

/// Gives the groups their momenta, as many as there are values.
/// Errors: c10::ValueError, before any is set, if a group's options have none.
void set_momenta(torch::optim::Optimizer& optimizer, const std::vector<double>& momenta);

/// Whether the options have a momentum.
bool has_momentum(const torch::optim::OptimizerOptions& options);

}  // namespace accelerate::optim
