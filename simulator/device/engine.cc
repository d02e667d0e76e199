#include <optional>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "absl/cleanup/cleanup.h"
#include "simulator/device/host_call.h"
#include "simulator/device/install.h"
#include "simulator/device/op_watch.h"
#include "simulator/device/sim_device.h"

namespace accelerate::simulator {
namespace {

using torch::autograd::edge_list;
using torch::autograd::variable_list;

// The leaves that a backward pass from `roots` reaches.
std::vector<at::Tensor> leaves_of(const edge_list& roots) {
  std::vector<at::Tensor> leaves;
  std::unordered_set<const torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> open;
  auto visit = [&](const torch::autograd::Edge& edge) {
    torch::autograd::Node* node = edge.function.get();
    if (node != nullptr && seen.insert(node).second) open.push_back(node);
  };
  for (const torch::autograd::Edge& root : roots) visit(root);
  while (!open.empty()) {
    torch::autograd::Node* node = open.back();
    open.pop_back();
    if (auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) {
      leaves.push_back(leaf->variable);
    }
    for (const torch::autograd::Edge& edge : node->next_edges()) visit(edge);
  }
  return leaves;
}

void mark(const at::Tensor& tensor, MemoryCategory category) {
  MemoryBlock* block = charged_block_of(tensor);
  if (block == nullptr) return;
  // A gradient may be part of a bucket. A parameter that was broadcast by itself is not one.
  const bool is_bucket = block->category == MemoryCategory::kBuckets;
  if (is_bucket && category == MemoryCategory::kGradients) return;
  block->memory->set_observed_category(block, category);
}

// A gradient outside of any bucket is for its parameter's module.
void name_like(const at::Tensor& gradient, const at::Tensor& parameter) {
  MemoryBlock* block = charged_block_of(gradient);
  const MemoryBlock* named = charged_block_of(parameter);
  if (block == nullptr || named == nullptr) return;
  if (block->category == MemoryCategory::kGradients && named->module != 0) {
    block->memory->name_like(block, *named);
  }
}

// Marks the outermost backward pass of a rank on all its devices, and the leaves that it reaches.
class BackwardScope {
 public:
  // `device` is the one on which the pass begins.
  // Errors: c10::Error for a leaf that is another rank's.
  BackwardScope(SimDevice& device, const edge_list& roots) : operation_(nullptr, "backward") {
    if (device.memory().in_backward()) return;
    leaves_ = leaves_of(roots);
    for (const at::Tensor& leaf : leaves_) {
      if (leaf.is_privateuseone()) device_of(leaf, "a backward pass");
    }
    // Not in a rank: the only device that is known.
    if (own_devices().empty()) devices_.push_back(&device);
    devices_.insert(devices_.end(), own_devices().begin(), own_devices().end());
    for (SimDevice* each : devices_) each->memory().begin_backward();
    watch_backward(/*begins=*/true);
    for (const at::Tensor& leaf : leaves_) mark(leaf, MemoryCategory::kParameters);
  }
  ~BackwardScope() {
    for (SimDevice* each : devices_) each->memory().end_backward();
    if (!devices_.empty()) watch_backward(/*begins=*/false);
    for (const at::Tensor& leaf : leaves_) {
      mark(leaf.grad(), MemoryCategory::kGradients);
      name_like(leaf.grad(), leaf);
    }
  }
  BackwardScope(const BackwardScope&) = delete;
  BackwardScope& operator=(const BackwardScope&) = delete;

 private:
  const KernelScope operation_;
  std::vector<at::Tensor> leaves_;
  std::vector<SimDevice*> devices_;  // none in a pass within a pass
};

class SimEngine final : public torch::autograd::Engine {
 public:
  SimEngine() {
    // The base class starts a thread for each device that it finds, once: now, before there are
    // simulated ones.
    initialize_device_threads_pool();
  }

  variable_list execute(const edge_list& roots, const variable_list& inputs, bool keep_graph,
                        bool create_graph, bool accumulate_grad,
                        const edge_list& outputs) override {
    // Makes LibTorch run the pass on the calling thread, whatever devices it reaches.
    c10::AutogradState& state = c10::AutogradState::get_tls_state();
    const absl::Cleanup restore = [&state, before = state.get_multithreading_enabled()] {
      state.set_multithreading_enabled(before);
    };
    state.set_multithreading_enabled(false);
    std::optional<BackwardScope> scope;
    if (SimDevice* device = device_of_roots(roots)) scope.emplace(*device, roots);
    return Engine::execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }

 private:
  // The device of the first root that is on one; null if none is.
  static SimDevice* device_of_roots(const edge_list& roots) {
    for (const torch::autograd::Edge& root : roots) {
      if (!root.function || root.function->num_inputs() <= root.input_nr) continue;
      const c10::Device device = root.function->input_metadata(root.input_nr).device();
      if (device.is_privateuseone()) return &own_device(device.index(), "runs a backward pass on");
    }
    return nullptr;
  }
};

torch::autograd::Engine& engine() {
  static auto& made = *new SimEngine();
  return made;
}

}  // namespace

void install_engine() {
  engine();
  torch::autograd::set_default_engine_stub(&engine);
}

}  // namespace accelerate::simulator
