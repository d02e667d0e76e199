#include "accelerate/parallel/buffer_refresh.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace accelerate {

void BufferRefresh::wait_for_backward(const std::vector<at::Tensor>& outputs) {
  using torch::autograd::variable_list;
  const int64_t pass = begun_ + 1;
  const auto note = [pass, last = last_reached_](const variable_list& results,
                                                 const variable_list&) {
    // With create_graph the graph is used again.
    if (at::GradMode::is_enabled()) return results;
    int64_t before = *last;
    while (before < pass && !last->compare_exchange_weak(before, pass)) {
    }
    return results;
  };
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.grad_fn()) continue;
    output.grad_fn()->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(note));
    begun_ = pass;
  }
}

}  // namespace accelerate
