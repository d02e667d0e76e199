/// What differs among the releases of LibTorch that this library is built with, 2.6 to 2.15: the
/// one header that knows. It asks for what there is, and not for the number of a release.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

namespace accelerate::internal {

// ---- Nodes of autograd's graph.

/// What an Edge holds: a std::shared_ptr, in later releases a c10::intrusive_ptr.
using NodePointer = decltype(torch::autograd::Edge::function);

inline constexpr bool kNodesAreShared =
    std::is_same_v<NodePointer, std::shared_ptr<torch::autograd::Node>>;

/// Made of a NodePointer, which may be null. Its lock() gives one.
using WeakNodePointer = std::conditional_t<kNodesAreShared, std::weak_ptr<torch::autograd::Node>,
                                           c10::weak_intrusive_ptr<torch::autograd::Node>>;

/// A pointer to a new NodeType. However long the graph before it is, its end takes little stack.
template <typename NodeType, typename... Args>
auto make_node(Args&&... args) {
  if constexpr (kNodesAreShared) {
    return std::shared_ptr<NodeType>(new NodeType(std::forward<Args>(args)...),
                                     [](auto* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<NodeType>(std::forward<Args>(args)...);
  }
}

/// Gives `node` one more input, which is described as `metadata` (torch::autograd::InputMetadata)
/// is.
template <typename Metadata>
void add_input_like(torch::autograd::Node& node, const Metadata& metadata) {
  if (metadata.was_default_constructed()) {
    node.add_input_metadata(torch::autograd::Node::undefined_input());
  } else if constexpr (requires { metadata.grad_dtype(); }) {
    node.add_input_metadata(metadata.options(), metadata.shape_as_dim_vector(),
                            metadata.is_tensor_subclass(), metadata.is_nested_tensor(),
                            metadata.grad_dtype());
  } else {
    node.add_input_metadata(metadata.options(), metadata.shape_as_dim_vector(),
                            metadata.is_tensor_subclass(), metadata.is_nested_tensor());
  }
}

// ---- Values of a thread.

inline constexpr std::string_view kOperatorHandlersKind = "ACCELERATE_OPERATOR_HANDLERS";

/// The kind of c10::ThreadLocalDebugInfo under which operator handlers stand: a number that
/// LibTorch, whose kinds count from 0, only compares; in later releases the address of a name.
template <typename Kind = c10::DebugInfoKind>
constexpr Kind operator_handlers_kind() {
  if constexpr (std::is_enum_v<Kind>) {
    return static_cast<Kind>(0xAC);
  } else {
    return Kind(&kOperatorHandlersKind);
  }
}

// ---- c10d's Reducer.

/// A ReducerType, which is c10d::Reducer or derived from it. `rest` is what its constructor takes
/// from the process group to the size of the first bucket; `limits`, the sizes that `buckets` were
/// made by, is gone from later releases.
template <typename ReducerType, typename... Rest>
std::shared_ptr<ReducerType> make_reducer(std::vector<at::Tensor> parameters,
                                          std::vector<std::vector<size_t>> buckets,
                                          const std::vector<size_t>& limits, Rest... rest) {
  if constexpr (std::is_constructible_v<ReducerType, std::vector<at::Tensor>,
                                        std::vector<std::vector<size_t>>,
                                        const std::vector<size_t>&, Rest...>) {
    return std::make_shared<ReducerType>(std::move(parameters), std::move(buckets), limits,
                                         std::move(rest)...);
  } else {
    return std::make_shared<ReducerType>(
        std::move(parameters), std::move(buckets), std::move(rest)...,
        /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
        /*bucket_bytes_cap_list=*/std::vector<int64_t>());
  }
}

}  // namespace accelerate::internal
