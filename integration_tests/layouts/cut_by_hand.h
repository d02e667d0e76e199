/// A technique of tests, which cuts the parameters of a module as the module says: what a technique
/// that divides layers does to a model, without what such a technique computes.
///
/// Threads: the rank's thread.
#pragma once

#include <vector>

#include "accelerate/parallel/layout/model_layout.h"

namespace accelerate {

/// A module that is cut when it is prepared.
class CutByHand {
 public:
  virtual ~CutByHand() = default;
  /// Those of all parameters of the module, which are whole then; empty: the module is not cut.
  virtual std::vector<TensorPlacement> placements() const = 0;
  /// Its parameters are the rank's parts now. Local.
  virtual void was_cut(const ModelLayout& /*layout*/, int /*rank*/) {}
};

/// The rank's job has the technique from now on, beside all others. Local; after the job's
/// Accelerator is made, and before models are prepared.
void cut_modules_by_hand();

}  // namespace accelerate
