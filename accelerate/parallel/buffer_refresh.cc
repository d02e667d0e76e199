#include "accelerate/parallel/buffer_refresh.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace accelerate {

void BufferRefresh::wait_for_backward(const std::vector<at::Tensor>& outputs) {
  using torch::autograd::variable_list;
  const auto note = [waits = waits_](const variable_list& results, const variable_list&) {
    // With create_graph the graph is used again.
    if (!at::GradMode::is_enabled()) *waits = false;
    return results;
  };
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.grad_fn()) continue;
    output.grad_fn()->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(note));
    *waits_ = true;
  }
}

}  // namespace accelerate
