/// What is done when a backward pass comes to outputs of a prepared model.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace accelerate {

/// When a prepared model's buffers follow those of rank 0.
///
/// They are copied before a forward pass that follows a synchronising one, but never while a
/// forward pass waits for its backward pass: autograd may have saved them, and they are copied in
/// place, because layers hold the tensors themselves. So it is once a step, however many forward
/// passes a step has. In between each rank's buffers go on from its own values, as one process's
/// would. A pass whose outputs need no gradients is not waited for. One whose backward pass never
/// comes counts as waiting until that of a later pass comes; leave out its graph with
/// torch::NoGradGuard.
///
/// Local, and ranks that make the same passes decide alike.
/// Threads: the rank's thread; a backward pass may run on others.
class BufferRefresh {
 public:
  /// `enabled`: broadcast_buffers.
  BufferRefresh(std::vector<at::Tensor> buffers, bool enabled)
      : buffers_(std::move(buffers)), enabled_(enabled) {}

  const std::vector<at::Tensor>& buffers() const { return buffers_; }
  /// Whether buffers are ever copied.
  bool is_used() const { return enabled_ && !buffers_.empty(); }

  /// Whether rank 0's buffers are to be copied before the pass that begins.
  bool is_due() const { return is_used() && may_differ_ && *last_reached_ >= begun_; }
  void copied() { may_differ_ = false; }

  /// Whether those of the ranks may have become different since they were copied.
  bool may_differ() const { return may_differ_; }
  void set_may_differ(bool may_differ) { may_differ_ = may_differ; }

  /// After a forward pass with gradients, with its outputs; only where is_used().
  void wait_for_backward(const std::vector<at::Tensor>& outputs);
  /// No backward pass is waited for any longer.
  void stop_waiting() { *last_reached_ = begun_; }

 private:
  const std::vector<at::Tensor> buffers_;
  const bool enabled_;
  bool may_differ_ = true;
  // Passes are numbered from 1. This many have begun, and the backward pass of this one has come,
  // which is the last of those whose backward pass has.
  int64_t begun_ = 0;
  const std::shared_ptr<std::atomic<int64_t>> last_reached_ =
      std::make_shared<std::atomic<int64_t>>(0);
};

/// From now on each backward pass that accumulates gradients calls the function when it comes to
/// one of the outputs, before it comes to what the output was computed from. A pass of
/// autograd::grad, or towards some tensors only, does not. Outputs without a graph are left out.
/// Local. Threads: the call is made by a thread of the backward pass; several may make it at once.
void call_before_backward(const std::vector<at::Tensor>& outputs,
                          const std::function<void()>& function);

}  // namespace accelerate
