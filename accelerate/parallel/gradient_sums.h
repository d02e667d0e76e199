/// The sums that a model's layout owes after a backward pass: where ranks along an axis have the
/// same tensor but have computed a part of its gradient each, as its placement says (`sums`), they
/// add the parts up.
///
/// Parts of several micro-steps add up on each rank first, and are sent once. What ranks have
/// summed already stays as it is while later passes add to it, until the gradient is reset or
/// changed by other code. Collective: end() over each group, in the order of `owed`, where it sums.
/// Threads: the rank's thread, and LibTorch's backward threads while it waits for them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/comm/process_group.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {

class GradientSums {
 public:
  struct Owed {
    ProcessGroupPtr group;
    /// What optimizers train, by the names of the parameters; the same tensors in the same order on
    /// all ranks of the group.
    NamedTensors trained;
  };
  explicit GradientSums(const std::vector<Owed>& owed);

  /// A backward pass begins, before it adds to gradients. Local.
  void begin();
  /// The pass has added to gradients, and other techniques have reduced them. With `sums` the ranks
  /// add up their parts, those of earlier passes without sums among them: one all-reduce for each
  /// group and dtype, of half precision in float32.
  void end(bool sums);

  /// What of the gradients, as they are now, ranks have summed, by name; without those of which
  /// they have summed nothing. With it a job that has these gradients again goes on. Local.
  NamedTensors summed() const;
  /// Goes on where the trained tensors have the gradients that they had at summed(): to be called
  /// when they have them. Local.
  /// Errors: c10::ValueError naming a tensor whose gradient has other sizes.
  void set_summed(const NamedTensors& summed);

 private:
  struct Part {
    std::string name;
    at::Tensor trained;
    at::Tensor gradient;  // as end() left it; undefined: nothing is known
    int64_t version = 0;  // the gradient's
    // What of it ranks have summed; undefined: nothing, or all of it. A copy is made as soon as a
    // later pass adds to the gradient, and not before: most gradients are reset.
    at::Tensor summed;
    bool is_summed = false;  // all of it
  };
  struct Group {
    ProcessGroupPtr group;
    std::vector<Part> parts;
  };
  static bool is_as_left(const Part& part);
  static void sum(const Group& group);

  std::vector<Group> groups_;
};

}  // namespace accelerate
