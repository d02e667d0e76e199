#include "accelerate/parallel/before_backward.h"

#include <memory>
#include <utility>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
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

}  // namespace accelerate
