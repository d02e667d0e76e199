#include "accelerate/forward/technique.h"

#include "absl/cleanup/cleanup.h"
#include "accelerate/forward/forward_call.h"

namespace accelerate {

void ForwardPass::proceed() {
  if (next_ == techniques_.size()) return call_.run(input_dtype_);
  Technique& technique = *techniques_[next_++];
  // So that a technique may run the techniques inside it again.
  const absl::Cleanup leave = [this] { --next_; };
  technique.forward(*this);
}

std::vector<at::Tensor> ForwardPass::inputs() const { return call_.inputs().tensors(); }
void ForwardPass::set_inputs(std::vector<at::Tensor> inputs) {
  call_.inputs().set_tensors(std::move(inputs));
}

std::vector<at::Tensor> ForwardPass::outputs() const { return call_.outputs().tensors(); }
void ForwardPass::set_outputs(std::vector<at::Tensor> outputs) {
  call_.outputs().set_tensors(std::move(outputs));
}

}  // namespace accelerate
