#include "accelerate/device_map/module_sizes.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/status.h"

namespace accelerate {
namespace {

using internal::tree_sizes;
using internal::TreeSizes;

size_t at(int32_t number) { return static_cast<size_t>(number); }

// Adds the module, behind those around it, unless they are there.
void add_modules(const ModuleTree& tree, ModuleTree::Module module, const TreeSizes& sizes,
                 std::vector<bool>& added, NamedSizes& named) {
  if (module < 0 || added[at(module)]) return;
  added[at(module)] = true;
  add_modules(tree, tree.module(module).parent, sizes, added, named);
  named.emplace_back(tree.module_path(module), sizes.modules[at(module)]);
}

// Bytes of the buffers alone.
TreeSizes without_parameters(const ModuleTree& tree, TreeSizes sizes) {
  std::ranges::fill(sizes.modules, 0);
  for (size_t i = 0; i < sizes.tensors.size(); ++i) {
    const ModuleTree::TensorInfo& tensor = tree.tensors()[i];
    if (tensor.is_buffer) {
      sizes.modules[at(tensor.module)] += sizes.tensors[i];
    } else {
      sizes.tensors[i] = 0;
    }
  }
  for (size_t i = sizes.modules.size(); i-- > 1;) {
    sizes.modules[at(tree.modules()[i].parent)] += sizes.modules[i];
  }
  return sizes;
}

LargestLayer largest_layer(const ModuleTree& tree, const TreeSizes& sizes,
                           absl::Span<const std::string> no_split_module_classes) {
  const std::vector<bool> no_split = internal::has_class(tree, no_split_module_classes);
  const ModuleTree::ModuleInfo& root = tree.module(0);
  LargestLayer largest;
  const auto add = [&largest](const std::string& name, double bytes) {
    if (bytes > largest.bytes) largest = {.bytes = bytes, .names = {}};
    if (bytes == largest.bytes) largest.names.push_back(name);
  };
  absl::flat_hash_set<ModuleTree::Tensor> seen;
  const auto add_tensors = [&](const std::vector<ModuleTree::Tensor>& tensors) {
    for (const ModuleTree::Tensor each : tensors) {
      if (!seen.insert(tree.tensor(each).identity).second) continue;
      add(tree.tensor(each).name, sizes.tensors[at(each)]);
    }
  };
  add_tensors(root.parameters);
  std::vector<ModuleTree::Module> open(root.children.rbegin(), root.children.rend());
  while (!open.empty()) {
    const ModuleTree::Module module = open.back();
    open.pop_back();
    const std::vector<ModuleTree::Module>& children = tree.module(module).children;
    if (children.empty() || no_split[at(module)]) {
      const double bytes = sizes.modules[at(module)];
      if (bytes >= largest.bytes) add(tree.module_path(module), bytes);
    } else {
      open.insert(open.end(), children.rbegin(), children.rend());
    }
  }
  add_tensors(root.buffers);
  return largest;
}

}  // namespace

namespace internal {

absl::StatusOr<TreeSizes> tree_sizes(const ModuleTree& tree, const SizeOptions& options) {
  double dtype = 0;
  if (!options.dtype.empty()) {
    ACCELERATE_ASSIGN_OR_RETURN(dtype, dtype_bytes(options.dtype));
  }
  absl::flat_hash_map<ModuleTree::Tensor, double> special;
  for (const auto& [name, special_dtype] : options.special_dtypes) {
    ACCELERATE_ASSIGN_OR_RETURN(const double found, dtype_bytes(special_dtype));
    const ModuleTree::Tensor tensor = tree.find_tensor(name);
    if (tensor >= 0) special[tensor] = found;
  }
  TreeSizes sizes{.modules = std::vector<double>(tree.modules().size()),
                  .tensors = std::vector<double>(tree.tensors().size())};
  std::vector<bool> is_counted(tree.tensors().size());
  for (const ModuleTree::Tensor each : tree.tensors_in_order()) {
    const ModuleTree::TensorInfo& tensor = tree.tensor(each);
    if (is_counted[at(tensor.identity)]) continue;
    is_counted[at(tensor.identity)] = true;
    ACCELERATE_ASSIGN_OR_RETURN(const double own, dtype_bytes(tensor.dtype));
    double element = own;
    if (const auto found = special.find(each); found != special.end()) {
      element = found->second;
    } else if (dtype > 0 && !is_kept_dtype(tensor.dtype)) {
      element = std::min(dtype, own);
    }
    sizes.tensors[at(each)] = tensor.elements * element;
    sizes.modules[at(tensor.module)] += sizes.tensors[at(each)];
  }
  // A module is added behind its parent.
  for (size_t i = sizes.modules.size(); i-- > 1;) {
    sizes.modules[at(tree.modules()[i].parent)] += sizes.modules[i];
  }
  return sizes;
}

std::vector<bool> has_class(const ModuleTree& tree, absl::Span<const std::string> classes) {
  const absl::flat_hash_set<absl::string_view> wanted(classes.begin(), classes.end());
  std::vector<bool> has(tree.modules().size());
  for (size_t i = 0; i < has.size(); ++i) has[i] = wanted.contains(tree.modules()[i].class_name);
  return has;
}

}  // namespace internal

absl::StatusOr<NamedSizes> compute_module_sizes(const ModuleTree& tree, const SizeOptions& options,
                                                bool buffers_only) {
  ACCELERATE_ASSIGN_OR_RETURN(TreeSizes sizes, tree_sizes(tree, options));
  if (buffers_only) sizes = without_parameters(tree, std::move(sizes));
  NamedSizes named;
  std::vector<bool> added(tree.modules().size());
  std::vector<bool> is_counted(tree.tensors().size());
  for (const ModuleTree::Tensor each : tree.tensors_in_order()) {
    const ModuleTree::TensorInfo& tensor = tree.tensor(each);
    if (buffers_only && !tensor.is_buffer) continue;
    if (is_counted[at(tensor.identity)]) continue;
    is_counted[at(tensor.identity)] = true;
    add_modules(tree, tensor.module, sizes, added, named);
    named.emplace_back(tree.tensor_path(each), sizes.tensors[at(each)]);
  }
  return named;
}

absl::StatusOr<double> compute_module_total_buffer_size(const ModuleTree& tree,
                                                        const SizeOptions& options) {
  ACCELERATE_ASSIGN_OR_RETURN(TreeSizes sizes, tree_sizes(tree, options));
  return without_parameters(tree, std::move(sizes)).modules[0];
}

std::vector<std::string> get_module_leaves(const NamedSizes& sizes) {
  absl::flat_hash_set<absl::string_view> parents;
  for (const auto& [name, bytes] : sizes) {
    const size_t dot = name.rfind('.');
    if (dot != name.npos) parents.insert(absl::string_view(name).substr(0, dot));
  }
  std::vector<std::string> leaves;
  for (const auto& [name, bytes] : sizes) {
    if (!name.empty() && !parents.contains(name)) leaves.push_back(name);
  }
  return leaves;
}

absl::StatusOr<LargestLayer> get_max_layer_size(
    const ModuleTree& tree, absl::Span<const std::string> no_split_module_classes,
    const SizeOptions& options) {
  ACCELERATE_ASSIGN_OR_RETURN(const TreeSizes sizes, tree_sizes(tree, options));
  return largest_layer(tree, sizes, no_split_module_classes);
}

absl::StatusOr<MaximumSizes> calculate_maximum_sizes(const ModuleTree& tree) {
  ACCELERATE_ASSIGN_OR_RETURN(const TreeSizes sizes, tree_sizes(tree, {}));
  return MaximumSizes{.total = sizes.modules[0], .largest_layer = largest_layer(tree, sizes, {})};
}

}  // namespace accelerate
