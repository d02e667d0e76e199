/// What the training of the examples shares.
#pragma once

#include <cstdint>

#include <ATen/ops/tensor.h>

#include "accelerate/accelerator.h"

namespace examples {

/// The number of optimizer steps, over all runs.
struct StepCount {
  int64_t value = 0;
  accelerate::StateDict state_dict() const { return {.values = {{"steps", value}}}; }
  void load_state_dict(const accelerate::StateDict& state) { value = state.values.at("steps"); }
};

/// Where checkpoints and logs go. The last two checkpoints are kept.
template <typename Options>
accelerate::ProjectConfiguration project_of(const Options& options) {
  accelerate::ProjectConfiguration project{.logging_dir = options.logging_dir};
  if (options.output_dir.empty()) return project;
  project.project_dir = options.output_dir;
  project.automatic_checkpoint_naming = true;
  project.total_limit = 2;
  return project;
}

/// The largest use of any rank's device, in bytes; 0 where devices do not count their memory.
/// Collective where they do.
inline int64_t peak_memory(accelerate::Accelerator& accelerator) {
  const auto use = accelerator.runtime().device_memory();
  if (!use) return 0;
  // Not a whole number, with which ranks could decide what they do: the allocators of two ranks
  // that do the same may differ by a block, and a folded simulation refuses whole numbers that
  // differ.
  const at::Tensor peak =
      at::tensor({static_cast<double>(use->peak)}, at::kDouble).to(accelerator.device());
  return static_cast<int64_t>(accelerator.gather(peak).max().item<double>());
}

}  // namespace examples
