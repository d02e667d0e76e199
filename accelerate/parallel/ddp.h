/// Data-parallel training of one model: every rank has a replica, gradients are averaged during the
/// backward pass. A thin hand on c10d::Reducer, which does the bucketing and the overlap.
///
/// Collective: the constructor (replicas are checked against each other and set to rank 0's), and
/// each backward pass that follows before_forward/after_forward with synchronisation on.
/// Errors: c10::Error naming the parameter if replicas differ in shape; the Reducer's own error,
///         with parameter names, if a backward pass did not reach all parameters.
/// Threads: the rank's thread.
/// Mirrors: torch.nn.parallel.DistributedDataParallel.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include "accelerate/config/kwargs_handlers.h"

namespace c10d {
class Logger;
class ProcessGroup;
}  // namespace c10d

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace accelerate {

class DistributedDataParallel {
 public:
  DistributedDataParallel(std::shared_ptr<torch::nn::Module> module,
                          c10::intrusive_ptr<c10d::ProcessGroup> group,
                          const DistributedDataParallelKwargs& options);
  ~DistributedDataParallel();

  /// Whether the next forward pass prepares a synchronising backward pass. Off, gradients only
  /// accumulate on their rank.
  void set_require_sync(bool require_sync) { require_sync_ = require_sync; }
  bool require_sync() const { return require_sync_; }

  /// To be called around every forward pass. `outputs` are needed with find_unused_parameters only.
  void before_forward();
  void after_forward(const std::vector<at::Tensor>& outputs);
  bool needs_outputs() const { return options_.find_unused_parameters; }

 private:
  struct Reducer;

  void broadcast_from_main(const std::vector<at::Tensor>& tensors) const;

  const std::shared_ptr<torch::nn::Module> module_;
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const DistributedDataParallelKwargs options_;
  std::vector<at::Tensor> buffers_;
  std::vector<std::pair<std::string, at::Tensor>> replicas_;  // the trainable parameters
  std::string replicas_name_;
  std::shared_ptr<Reducer> reducer_;
  // The Reducer takes for granted that it has one.
  std::shared_ptr<c10d::Logger> logger_;
  bool require_sync_ = true;
  // Buffers only need refreshing after a pass in which ranks could have moved apart.
  bool require_buffer_sync_ = true;
};

}  // namespace accelerate
