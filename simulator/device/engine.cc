#include <memory>
#include <optional>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "simulator/device/install.h"
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

void mark(SimDevice& device, const at::Tensor& tensor, MemoryCategory category) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  MemoryBlock* block = block_of(tensor.storage().data_ptr());
  // A gradient may be part of a bucket.
  if (block == nullptr || block->category == MemoryCategory::kBuckets) return;
  device.memory().mark(block, category);
}

// Marks the outermost backward pass on a device, and the leaves that it reaches.
class BackwardScope {
 public:
  BackwardScope(SimDevice& device, const edge_list& roots)
      : device_(device),
        outermost_(!device.memory().in_backward()),
        // Parts of the graph on the host run on behalf of the device.
        charge_(&device, "backward") {
    if (!outermost_) return;
    device_.memory().begin_backward();
    leaves_ = leaves_of(roots);
    for (const at::Tensor& leaf : leaves_) mark(device_, leaf, MemoryCategory::kParameters);
  }
  ~BackwardScope() {
    if (!outermost_) return;
    device_.memory().end_backward();
    // The pass has waited for its collectives on CPU tensors by now.
    device_.stream_waits(device_.current_stream(), device_.debt_ns());
    for (const at::Tensor& leaf : leaves_) mark(device_, leaf.grad(), MemoryCategory::kGradients);
  }
  BackwardScope(const BackwardScope&) = delete;
  BackwardScope& operator=(const BackwardScope&) = delete;

 private:
  SimDevice& device_;
  const bool outermost_;
  const ChargeScope charge_;
  std::vector<at::Tensor> leaves_;
};

class SimEngine final : public torch::autograd::Engine {
 public:
  SimEngine() {
    // Setting the flag keeps the base class from starting a thread for each device.
    c10::call_once(start_device_threads_flag_, [] {});
    device_ready_queues_.resize(kMaxAddressableDevices);
  }

  variable_list execute(const edge_list& roots, const variable_list& inputs, bool keep_graph,
                        bool create_graph, bool accumulate_grad,
                        const edge_list& outputs) override {
    thread_local const std::shared_ptr<torch::autograd::ReadyQueue> queue = [this] {
      auto made = std::make_shared<torch::autograd::ReadyQueue>();
      init_local_ready_queue(made);
      return made;
    }();
    std::optional<BackwardScope> scope;
    SimDevice* device = device_of(roots);
    if (device != nullptr) {
      const int rank = current_rank();
      TORCH_CHECK(rank < 0 || rank == device->index(), "rank ", rank, " runs a backward pass on ",
                  device->name(), ", which is rank ", device->index(), "'s device");
      // The graph's nodes on this device run on this thread. Other devices' queues do not matter:
      // HostCall rejects tensors of other ranks before they get into a graph.
      device_ready_queues_[device->index()] = queue;
    } else {
      // A rank whose tensors are on the CPU and charged to its device; see op_watch.h.
      device = ChargeScope::charged_device();
    }
    if (device != nullptr) scope.emplace(*device, roots);
    return Engine::execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }

 private:
  static SimDevice* device_of(const edge_list& roots) {
    for (const torch::autograd::Edge& root : roots) {
      if (!root.function || root.function->num_inputs() <= root.input_nr) continue;
      const c10::Device device = root.function->input_metadata(root.input_nr).device();
      if (device.is_privateuseone()) return &SimDevice::of(device.index());
    }
    return nullptr;
  }
};

torch::autograd::Engine& engine() {
  static auto& made = *new SimEngine();
  return made;
}

}  // namespace

void install_engine() { torch::autograd::set_default_engine_stub(&engine); }

}  // namespace accelerate::simulator
