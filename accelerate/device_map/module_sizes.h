/// How many bytes the parts of a model take.
///
/// A tensor with several names counts once, under the first in the order of
/// ModuleTree::tensors_in_order.
/// Units:   bytes, as in module_tree.h.
/// Errors:  absl::InvalidArgument for names that no dtype has.
/// Threads: pure functions.
/// Mirrors: accelerate utils/modeling.py, compute_module_sizes, compute_module_total_buffer_size,
///          get_max_layer_size, get_module_leaves and calculate_maximum_sizes.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "accelerate/device_map/module_tree.h"

namespace accelerate {

/// In which dtypes the model will be loaded.
struct SizeOptions {
  /// What tensors are converted to that take more bytes in their own, but for those of
  /// is_kept_dtype. Empty: nothing is converted.
  std::string dtype;
  /// Dtypes of single tensors by path, which go before `dtype`. Other names are passed over.
  std::map<std::string, std::string> special_dtypes = {};
};

/// Paths and bytes; distinct.
using NamedSizes = std::vector<std::pair<std::string, double>>;

/// The bytes of every module, "" among them, and tensor, modules without tensors left out. In the
/// order in which a walk through tensors_in_order comes by the names.
absl::StatusOr<NamedSizes> compute_module_sizes(const ModuleTree& tree,
                                                const SizeOptions& options = {},
                                                bool buffers_only = false);

/// All buffers together.
absl::StatusOr<double> compute_module_total_buffer_size(const ModuleTree& tree,
                                                        const SizeOptions& options = {});

/// The names with no other name below them.
std::vector<std::string> get_module_leaves(const NamedSizes& sizes);

/// A layer is a module without modules in it or with one of the classes that are not split, or a
/// tensor of the root.
struct LargestLayer {
  double bytes = 0;
  /// All layers of this size: the root's parameters, then modules in order, then its buffers.
  std::vector<std::string> names;
};

absl::StatusOr<LargestLayer> get_max_layer_size(
    const ModuleTree& tree, absl::Span<const std::string> no_split_module_classes = {},
    const SizeOptions& options = {});

struct MaximumSizes {
  double total = 0;
  LargestLayer largest_layer;
};

/// With every tensor in its own dtype, and modules of every class split.
absl::StatusOr<MaximumSizes> calculate_maximum_sizes(const ModuleTree& tree);

namespace internal {

/// By the numbers of modules and tensors. The first of tensors that are one has the bytes and the
/// others none.
struct TreeSizes {
  std::vector<double> modules;
  std::vector<double> tensors;
};

absl::StatusOr<TreeSizes> tree_sizes(const ModuleTree& tree, const SizeOptions& options);

/// By the numbers of modules: whether the class is one of these.
std::vector<bool> has_class(const ModuleTree& tree, absl::Span<const std::string> classes);

}  // namespace internal
}  // namespace accelerate
