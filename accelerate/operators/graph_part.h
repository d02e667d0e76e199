/// The part of autograd's graph that a function makes: the edges that lead out of it, and its
/// gradients there, with one node in the place of what is behind.
///
/// Threads: the functions are those of the thread that made the part, or of its backward pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

namespace accelerate::internal {

/// The tensor whose gradient the edge leads to, if it is a leaf; else null.
const at::Tensor* leaf_of(const torch::autograd::Edge& edge);

/// The edges of those outputs that require a gradient.
torch::autograd::edge_list roots_of(const std::vector<at::Tensor>& outputs);

/// Tells nodes of the function from others.
struct GraphPart {
  /// Each thread numbers the nodes that it makes: the function's begin here.
  uint64_t first_number = 0;
  /// The inputs' nodes, which are outside whatever thread made them.
  std::unordered_set<const torch::autograd::Node*> sources = {};

  bool contains(const torch::autograd::Node& node) const;
};

/// Calls fn(edge) for `roots` and for each edge of the function's nodes. fn may change it.
template <typename Fn>
void for_each_edge(torch::autograd::edge_list& roots, const GraphPart& part, Fn&& fn) {
  using torch::autograd::Edge;
  using torch::autograd::Node;
  std::unordered_set<const Node*> seen;
  std::vector<Node*> open;
  auto visit = [&](Edge& edge) {
    if (!edge.is_valid()) return;
    fn(edge);
    Node* node = edge.function.get();
    if (part.contains(*node) && seen.insert(node).second) open.push_back(node);
  };
  for (Edge& root : roots) visit(root);
  while (!open.empty()) {
    Node* node = open.back();
    open.pop_back();
    for (Edge& edge : node->next_edges()) visit(edge);
  }
}

/// Edges that lead out of the function, each once.
torch::autograd::edge_list border_of(torch::autograd::edge_list roots, const GraphPart& part);

/// A part whose edges at the border lead to one node that ends it, which never runs: the nodes
/// behind the border belong to an outer backward pass, which calls their hooks.
class CutPart {
 public:
  /// Changes the part's edges, which `roots` lead into and which are among those of the border.
  CutPart(torch::autograd::edge_list roots, const GraphPart& part,
          const torch::autograd::edge_list& border);
  CutPart(const CutPart&) = delete;
  CutPart& operator=(const CutPart&) = delete;

  /// Whether the part still has the border's edge of that index.
  bool reaches(size_t index) const { return reached_[index]; }

  /// The gradients that arrive at the border's edges of these indices; `grads` are those of the
  /// roots. A root without a gradient is left out.
  torch::autograd::variable_list gradients(torch::autograd::variable_list grads,
                                           const std::vector<size_t>& wanted, bool keep_graph,
                                           bool create_graph) const;

  /// Gives the edges back where they led.
  void restore();

 private:
  torch::autograd::edge_list roots_;
  torch::autograd::Edge end_;
  std::vector<bool> reached_;
  std::vector<std::pair<torch::autograd::Edge*, torch::autograd::Edge>> changed_;
};

}  // namespace accelerate::internal
