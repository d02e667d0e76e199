#include "accelerate/operators/checkpoint.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>

#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "absl/cleanup/cleanup.h"
#include "accelerate/base/thread_scope.h"
#include "accelerate/comm/random.h"
#include "accelerate/operators/graph_part.h"
#include "accelerate/operators/operator_mode.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/tensors/libtorch_releases.h"

namespace accelerate {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

// ---- Random numbers and autocast.

struct AutocastState {
  struct OfDevice {
    c10::DeviceType type;
    bool enabled;
    at::ScalarType dtype;
  };
  std::vector<OfDevice> devices;
  bool cache_enabled = true;
};

AutocastState autocast_state(const Runtime& runtime) {
  AutocastState state{.cache_enabled = at::autocast::is_autocast_cache_enabled()};
  auto add = [&state](c10::DeviceType type) {
    state.devices.push_back(
        {type, at::autocast::is_autocast_enabled(type), at::autocast::get_autocast_dtype(type)});
  };
  add(c10::kCPU);
  if (!runtime.device().is_cpu()) add(runtime.device().type());
  return state;
}

void set_autocast_state(const AutocastState& state) {
  for (const AutocastState::OfDevice& device : state.devices) {
    at::autocast::set_autocast_enabled(device.type, device.enabled);
    at::autocast::set_autocast_dtype(device.type, device.dtype);
  }
  at::autocast::set_autocast_cache_enabled(state.cache_enabled);
}

// Autocast caches casts of parameters, which are nodes of the graph. The function may share none
// with the code around it, because the recomputation would not find it.
void forget_casts(const AutocastState& state) {
  bool any = false;
  for (const AutocastState::OfDevice& device : state.devices) any |= device.enabled;
  if (any && state.cache_enabled) at::autocast::clear_cache();
}

// ---- Runs of functions.

// While the function runs.
struct FunctionRun : internal::ThreadScope<FunctionRun, uint64_t> {
  FunctionRun() : ThreadScope(++runs) {}

  static inline std::atomic<uint64_t> runs = 0;
};

// ---- Inputs.

// A tensor, which must stay as it is, or its values in host memory.
struct KeptInput {
  at::Tensor tensor;
  int64_t version = 0;
  // For values in host memory: where they come from, and where their gradient goes.
  std::optional<c10::Device> device = std::nullopt;
  Edge edge = {};
};

int64_t version_of(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_inference() ? tensor._version() : 0;
}

void check_inputs(const std::vector<KeptInput>& inputs, const char* when) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].device) continue;
    const at::Tensor& tensor = inputs[i].tensor;
    TORCH_CHECK(version_of(tensor) == inputs[i].version, "checkpoint: input tensor ", i,
                ", of shape ", tensor.sizes(), ", was changed in place ", when,
                ", so that the function cannot be computed again");
  }
}

// Whether the device may forget it. A leaf's gradient node has it anyway, and an expanded view is
// smaller than its values.
bool can_be_offloaded(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_cpu() &&
         !tensor.is_meta() && !(tensor.is_leaf() && tensor.requires_grad()) &&
         std::ranges::count(tensor.strides(), 0) == 0;
}

// Copies are made in the order of the device's other work. The backward pass works on the stream of
// the forward pass, so the way back follows the way there.
void move_to_host(KeptInput& input) {
  if (!can_be_offloaded(input.tensor)) return;
  const at::NoGradGuard no_grad;
  const at::Tensor& tensor = input.tensor;
  at::Tensor host = at::empty_strided(
      tensor.sizes(), tensor.strides(),
      tensor.options().device(c10::kCPU).pinned_memory(!tensor.device().is_mps()));
  host.copy_(tensor, /*non_blocking=*/true);
  if (tensor.requires_grad()) input.edge = torch::autograd::impl::gradient_edge(tensor);
  input.device = tensor.device();
  input.tensor = std::move(host);
}

at::Tensor on_device(const KeptInput& input) {
  if (!input.device) return input.tensor;
  const at::NoGradGuard no_grad;
  const at::Tensor& host = input.tensor;
  at::Tensor tensor =
      at::empty_strided(host.sizes(), host.strides(), host.options().device(*input.device));
  tensor.copy_(host, /*non_blocking=*/true);
  if (input.edge.is_valid()) torch::autograd::impl::set_gradient_edge(tensor, input.edge);
  return tensor;
}

}  // namespace

struct internal::CheckpointedCall {
  Runtime* runtime;
  std::optional<RngState> rng;
  AutocastState autocast;
  OperatorHandlers handlers;
  GraphPart inside;
  bool offload_inputs = false;
  std::vector<KeptInput> inputs;
  // Until the function has run for the first time.
  std::optional<FunctionRun> first_run;
};

namespace {

using internal::CheckpointedCall;

// What handlers remember of inputs by the run that ends.
void forget_run(const CheckpointedCall& call) {
  for (const auto& handler : call.handlers) {
    for (const KeptInput& input : call.inputs) {
      if (input.tensor.defined()) handler->forget(input.tensor);
    }
  }
}

class CheckpointNode : public Node {
 public:
  CheckpointNode(const edge_list& border, std::shared_ptr<CheckpointedCall> call,
                 const std::vector<at::Tensor>& outputs, internal::ComputeAgain again)
      : Node(edge_list(border)),
        border_(border),
        call_(std::move(call)),
        again_(std::move(again)),
        outputs_(outputs.size()) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      // A description without data.
      outputs_[i].defined = outputs[i].defined();
      if (!outputs[i].defined()) continue;
      outputs_[i].requires_grad = outputs[i].requires_grad();
      outputs_[i].sizes = outputs[i].sizes().vec();
      outputs_[i].options = outputs[i].options();
    }
    for (const Edge& edge : border_) {
      const at::Tensor* parameter = internal::leaf_of(edge);
      parameter_versions_.push_back(parameter != nullptr ? parameter->_version() : 0);
    }
  }

  std::string name() const override { return "CheckpointBackward"; }

  void release_variables() override {
    again_ = nullptr;
    call_ = nullptr;
  }

  variable_list apply(variable_list&& grads) override {
    TORCH_CHECK(again_ != nullptr,
                "checkpoint: a second backward pass through a graph that was freed; the first one "
                "needs retain_graph");
    internal::GraphPart inside = call_->inside;
    const std::vector<at::Tensor> outputs = compute_again(&inside.first_number);
    internal::CutPart part(internal::roots_of(outputs), inside, border_);
    check_reached(part);
    std::vector<size_t> wanted;
    for (size_t i = 0; i < border_.size(); ++i) {
      if (task_should_compute_output(i)) wanted.push_back(i);
    }
    variable_list results(border_.size());
    const bool create_graph = at::GradMode::is_enabled();
    variable_list caught =
        part.gradients(std::move(grads), wanted, /*keep_graph=*/create_graph, create_graph);
    for (size_t i = 0; i < wanted.size(); ++i) results[wanted[i]] = std::move(caught[i]);
    // Gradients of these gradients go through the recomputed graph, to what is behind the border.
    if (create_graph) part.restore();
    return results;
  }

 private:
  struct Description {
    bool defined = false;
    bool requires_grad = false;
    std::vector<int64_t> sizes;
    at::TensorOptions options;
  };

  std::vector<at::Tensor> compute_again(uint64_t* first_number) const {
    const CheckpointedCall& call = *call_;
    check_inputs(call.inputs, "after the call");
    for (size_t i = 0; i < border_.size(); ++i) {
      const at::Tensor* parameter = internal::leaf_of(border_[i]);
      TORCH_CHECK(parameter == nullptr || parameter->_version() == parameter_versions_[i],
                  "checkpoint: a parameter of shape ", parameter->sizes(),
                  " was changed in place after the call, so that the function cannot be computed "
                  "again");
    }
    std::optional<RuntimeScope> scope;
    if (Runtime::find_current() == nullptr) scope.emplace(*call.runtime);
    std::optional<RngState> outer_rng;
    if (call.rng) outer_rng = capture_rng_state({}, *call.runtime);
    const absl::Cleanup restore_rng = [&] {
      if (outer_rng) restore_rng_state(*outer_rng, {}, *call.runtime);
    };
    if (call.rng) restore_rng_state(*call.rng, {}, *call.runtime);
    const AutocastState outer_autocast = autocast_state(*call.runtime);
    forget_casts(call.autocast);
    set_autocast_state(call.autocast);
    at::autocast::increment_nesting();
    const absl::Cleanup restore_autocast = [&] {
      at::autocast::decrement_nesting();
      forget_casts(call.autocast);
      set_autocast_state(outer_autocast);
    };
    const OperatorModeScope handlers(call.handlers);
    const FunctionRun run;
    at::AutoGradMode with_gradients(true);
    // Another thread than the call's continues that thread's numbers.
    while (at::sequence_number::peek() < call.inside.first_number)
      at::sequence_number::get_and_increment();
    *first_number = at::sequence_number::peek();
    std::vector<at::Tensor> inputs;
    for (const KeptInput& each : call.inputs) inputs.push_back(on_device(each));
    std::vector<at::Tensor> outputs = again_(inputs);
    forget_run(call);
    check_outputs(outputs);
    return outputs;
  }

  void check_outputs(const std::vector<at::Tensor>& outputs) const {
    TORCH_CHECK(outputs.size() == outputs_.size(), "checkpoint: the function gave ", outputs.size(),
                " tensors when it was computed again, and ", outputs_.size(), " at first");
    for (size_t i = 0; i < outputs.size(); ++i) {
      const at::Tensor& now = outputs[i];
      const Description& first = outputs_[i];
      TORCH_CHECK(now.defined() == first.defined, "checkpoint: tensor ", i, " of the function is ",
                  first.defined ? "un" : "", "defined when it is computed again, unlike at first");
      if (!first.defined) continue;
      TORCH_CHECK(now.sizes() == first.sizes && now.dtype() == first.options.dtype() &&
                      now.device() == first.options.device(),
                  "checkpoint: tensor ", i, " of the function has shape ", now.sizes(), ", type ",
                  now.dtype(), " and device ", now.device(),
                  " when it is computed again, and had shape ", at::IntArrayRef(first.sizes),
                  ", type ", first.options.dtype(), " and device ", first.options.device(),
                  " at first");
      TORCH_CHECK(now.requires_grad() == first.requires_grad, "checkpoint: tensor ", i,
                  " of the function ", first.requires_grad ? "requires no" : "requires a",
                  " gradient when it is computed again, unlike at first");
    }
  }

  void check_reached(const internal::CutPart& part) const {
    for (size_t i = 0; i < border_.size(); ++i) {
      if (part.reaches(i)) continue;
      const at::Tensor* leaf = internal::leaf_of(border_[i]);
      // A leaf that the function made itself is a new one each time, and its gradient is not used.
      if (leaf != nullptr && leaf->use_count() == 1) continue;
      TORCH_CHECK(false, "checkpoint: the function does not use ",
                  leaf != nullptr ? "a parameter" : "a tensor", " of shape ",
                  border_[i].function->input_metadata(border_[i].input_nr).shape_as_dim_vector(),
                  " when it is computed again, which it used at first");
    }
  }

  const edge_list border_;
  std::shared_ptr<CheckpointedCall> call_;
  internal::ComputeAgain again_;
  std::vector<Description> outputs_;
  std::vector<int64_t> parameter_versions_;  // by position in border_, for edges to leaves
};

}  // namespace

uint64_t checkpointed_run() { return FunctionRun::current(); }

namespace internal {

std::vector<at::Tensor> inputs_of(ForwardCall& call, bool offload_inputs) {
  std::vector<at::Tensor> tensors = call.inputs().tensors();
  if (offload_inputs) forget_tensors(call.inputs());
  return tensors;
}

std::shared_ptr<CheckpointedCall> begin_checkpoint(CheckpointOptions options,
                                                   const std::vector<at::Tensor>& inputs) {
  Runtime& runtime = Runtime::current();
  auto call = std::make_shared<CheckpointedCall>();
  call->runtime = &runtime;
  if (options.preserve_rng_state) call->rng = capture_rng_state({}, runtime);
  call->autocast = autocast_state(runtime);
  call->handlers = current_operator_handlers();
  forget_casts(call->autocast);
  call->offload_inputs = options.offload_inputs;
  for (const at::Tensor& input : inputs) {
    call->inputs.push_back({.tensor = input, .version = version_of(input)});
    if (input.defined() && input.grad_fn()) call->inside.sources.insert(input.grad_fn().get());
  }
  call->inside.first_number = at::sequence_number::peek();
  call->first_run.emplace();
  return call;
}

std::vector<at::Tensor> end_checkpoint(std::shared_ptr<CheckpointedCall> call,
                                       const std::vector<at::Tensor>& outputs, ComputeAgain again) {
  forget_casts(call->autocast);
  forget_run(*call);
  call->first_run.reset();
  check_inputs(call->inputs, "by the function itself");
  const edge_list border = border_of(roots_of(outputs), call->inside);
  if (border.empty()) return outputs;
  if (call->offload_inputs) std::ranges::for_each(call->inputs, &move_to_host);
  const auto node =
      internal::make_node<CheckpointNode>(border, std::move(call), outputs, std::move(again));
  std::vector<at::Tensor> results;
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) {
      results.push_back(output);
      continue;
    }
    // The same memory with another history.
    at::Tensor result = output.tensor_data();
    torch::autograd::set_history(result, node);
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace internal
}  // namespace accelerate
