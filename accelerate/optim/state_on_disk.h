/// An optimizer's state, and the parameters that it trains, on a disk between the optimizer's
/// steps.
///
/// A step goes by parts (step_in_parts.h): what a part needs is read before it, and written after
/// it, while other parts are updated (SwappedTensors). Parameters are on the disk where their owner
/// has moved them there; others are left as they are. State that is in memory, as a first step or
/// a checkpoint that is loaded makes it, goes to the disk part by part.
///
/// Between steps anything may use the tensors: they are brought one at a time.
///
/// Errors:  those of SwappedTensors, on all ranks: a rank whose disk fails makes the step of no
///          further parts. The parameters are partly those before the step then, so that a
///          checkpoint is to be loaded. One whose write failed after its step says so in its next
///          step, or to the first operator that uses what was lost.
/// Threads: the rank's thread.
/// Mirrors: deepspeed, runtime/swap_tensor, as of `offload_optimizer` with device nvme.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/comm/process_group.h"
#include "accelerate/optim/step_in_parts.h"

namespace accelerate {

class SwappedTensors;

class StateOnDisk final : private AroundParts {
 public:
  struct Options {
    /// The ranks that step together; null: one.
    ProcessGroupPtr group = nullptr;
    /// Called with each parameter after its update, while it is in memory.
    std::function<void(const at::Tensor& parameter)> updated = nullptr;
  };

  /// The optimizer outlives this. Local.
  /// Errors: c10::ValueError for an optimizer that cannot step in parts, or whose class this
  /// library
  ///         does not know.
  StateOnDisk(torch::optim::Optimizer& optimizer, std::shared_ptr<SwappedTensors> disk,
              Options options);

  /// A step comes soon: what its first parts need is read. Local.
  void expect_step();
  /// A step of the optimizer; see step_in_parts. Collective over the group.
  void step(int64_t elements);

  /// Moves to the disk what is in memory. Local.
  void store();

  const SwappedTensors& disk() const { return *disk_; }

 private:
  int64_t bytes_of(const at::Tensor& parameter) override;
  int64_t max_bytes() override;
  void begin(const std::vector<std::vector<at::Tensor>>& parts) override;
  void before(size_t part) override;
  void after(size_t part, bool failed) override;

  // The parameter and its state.
  std::vector<at::Tensor> tensors_of(const at::Tensor& parameter) const;
  void store(const at::Tensor& parameter);

  torch::optim::Optimizer& optimizer_;
  const std::shared_ptr<SwappedTensors> disk_;
  const Options options_;
  std::vector<std::vector<at::Tensor>> parts_;  // of the step that runs
};

}  // namespace accelerate
