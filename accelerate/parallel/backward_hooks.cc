#include "accelerate/parallel/backward_hooks.h"

#include <memory>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace accelerate {
namespace {

using torch::autograd::variable_list;

class BeforeBackward final : public torch::autograd::FunctionPreHook {
 public:
  explicit BeforeBackward(std::function<void()> function) : function_(std::move(function)) {}

  variable_list operator()(const variable_list& gradients) override {
    const auto* const nodes = torch::autograd::get_current_graph_task_exec_info();
    const bool accumulates_all = nodes == nullptr || nodes->empty();
    if (accumulates_all) function_();
    return gradients;
  }

 private:
  const std::function<void()> function_;
};

}  // namespace

void call_before_backward(const std::vector<at::Tensor>& outputs,
                          const std::function<void()>& function) {
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.grad_fn()) continue;
    output.grad_fn()->add_pre_hook(std::make_unique<BeforeBackward>(function));
  }
}

void BufferRefresh::wait_for_backward(const std::vector<at::Tensor>& outputs) {
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
