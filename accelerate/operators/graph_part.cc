#include "accelerate/operators/graph_part.h"

#include <map>

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "accelerate/tensors/libtorch_releases.h"

namespace accelerate::internal {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

using EdgeIndex = std::map<std::pair<const Node*, uint32_t>, size_t>;

struct Sink : Node {
  explicit Sink(const edge_list& border) : Node(/*sequence_nr=*/0) {
    for (const Edge& edge : border) {
      add_input_like(*this, edge.function->input_metadata(edge.input_nr));
    }
  }
  variable_list apply(variable_list&&) override {
    TORCH_INTERNAL_ASSERT(false, "the end of a part of a graph has run");
  }
};

}  // namespace

const at::Tensor* leaf_of(const Edge& edge) {
  const auto* node = dynamic_cast<const AccumulateGrad*>(edge.function.get());
  return node != nullptr ? &node->variable : nullptr;
}

edge_list roots_of(const std::vector<at::Tensor>& outputs) {
  edge_list roots;
  for (const at::Tensor& output : outputs) {
    if (output.defined() && output.requires_grad()) {
      roots.push_back(torch::autograd::impl::gradient_edge(output));
    }
  }
  return roots;
}

bool GraphPart::contains(const Node& node) const {
  return node.sequence_nr() >= first_number && !sources.contains(&node) &&
         dynamic_cast<const AccumulateGrad*>(&node) == nullptr;
}

edge_list border_of(edge_list roots, const GraphPart& part) {
  edge_list border;
  EdgeIndex index;
  for_each_edge(roots, part, [&](Edge& edge) {
    if (part.contains(*edge.function)) return;
    const auto key = std::pair(edge.function.get(), edge.input_nr);
    if (index.emplace(key, border.size()).second) border.push_back(edge);
  });
  return border;
}

CutPart::CutPart(edge_list roots, const GraphPart& part, const edge_list& border)
    : roots_(std::move(roots)), reached_(border.size(), false) {
  EdgeIndex index;
  for (size_t i = 0; i < border.size(); ++i) {
    index.emplace(std::pair(border[i].function.get(), border[i].input_nr), i);
  }
  const auto sink = make_node<Sink>(border);
  end_ = Edge(sink, 0);
  for_each_edge(roots_, part, [&](Edge& edge) {
    const auto found = index.find(std::pair(edge.function.get(), edge.input_nr));
    if (found == index.end()) return;
    reached_[found->second] = true;
    changed_.emplace_back(&edge, edge);
    edge = Edge(sink, static_cast<uint32_t>(found->second));
  });
}

variable_list CutPart::gradients(variable_list grads, const std::vector<size_t>& wanted,
                                 bool keep_graph, bool create_graph) const {
  edge_list roots;
  variable_list root_grads;
  for (size_t i = 0; i < grads.size(); ++i) {
    if (!grads[i].defined()) continue;
    roots.push_back(roots_[i]);
    root_grads.push_back(std::move(grads[i]));
  }
  if (roots.empty() || wanted.empty()) return variable_list(wanted.size());
  edge_list ends;
  for (const size_t index : wanted) ends.emplace_back(end_.function, static_cast<uint32_t>(index));
  return torch::autograd::Engine::get_default_engine().execute(
      roots, root_grads, keep_graph, create_graph, /*accumulate_grad=*/false, ends);
}

void CutPart::restore() {
  for (auto& [edge, original] : changed_) *edge = original;
}

}  // namespace accelerate::internal
