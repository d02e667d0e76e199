/// Records the operators of a region, forward and backward, as they reach autograd.
///
/// A recorder is an operator handler below all others (operators/operator_mode.h). It lets
/// operators that consist of others pass, so that their parts come by, and the casts of automatic
/// mixed precision as well; what is left is what autograd and the kernels really run.
///
/// Tensors are known by their memory and their geometry, because backward passes read other handles
/// of the same tensors. Storages stay known, not alive, until the recorder ends.
///
/// What cannot be repeated is noted, and nothing is recorded from then on: values that no operator
/// has made, reads of values by the program (item()), sizes that depend on values, communication,
/// changes in place of inputs other than buffers, random numbers of a generator of one's own,
/// layouts other than dense ones.
/// Threads: one at a time: that of the forward pass, then that of the backward pass.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include "accelerate/operators/operator_mode.h"

namespace accelerate {

class RegionRecorder final : public OperatorHandler {
 public:
  RegionRecorder();
  ~RegionRecorder() override;

  /// The tensors that the region begins with: parameters, buffers and inputs; undefined ones count.
  /// Those from `first_buffer` to before `first_input` may be changed in place.
  void begin(const std::vector<at::Tensor>& tensors, size_t first_buffer, size_t first_input);
  /// Ends the forward half.
  void end_forward(const std::vector<at::Tensor>& outputs);

  using Memory = c10::weak_intrusive_ptr<c10::StorageImpl>;
  /// The memory that the forward half has made and that its outputs do not have.
  std::vector<Memory> inner_memory(const std::vector<at::Tensor>& outputs) const;

  /// Whether the region has the tensor, or another one in its place.
  bool has(const at::Tensor& tensor) const;

  /// Begins the backward half. The gradients are those of the outputs that require one; they are
  /// dense and share no memory with each other, or with what the forward half has.
  void begin_backward(const std::vector<at::Tensor>& grads);
  /// Ends it: the gradient of each input that has an edge.
  void end_backward(const std::vector<std::pair<int, at::Tensor>>& gradients);

  /// Why nothing can be repeated; empty: it can.
  const std::string& problem() const { return problem_; }
  void note(const std::string& problem);

  /// Lines of the forward half, or of both.
  const std::string& text() const { return text_; }

  void call(const OperatorCall& call) override;

 private:
  struct Place;
  struct PlaceHash;
  struct Values;

  // Whether the operator's own parts come by, so that it need not be recorded.
  static bool passes(const OperatorCall& call);
  bool may_be_recorded(const OperatorCall& call);
  void record(const OperatorCall& call);

  std::unique_ptr<Values> values_;
  std::string text_;
  std::string problem_;
};

}  // namespace accelerate
