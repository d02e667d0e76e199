/// What ranks along tp, pp and ep have of a model's tensors, and the tree of its modules that
/// device maps are planned on.
///
/// Errors:  InvalidArgument, which says what the ranks do not divide, and the nearest number that
///          does.
/// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "accelerate/device_map/module_tree.h"
#include "launch/estimate/architecture.h"

namespace accelerate::launcher::estimate {

struct TpPart {
  /// The model with the shapes and elements that each rank has.
  Architecture architecture;
  /// What says which tensors are divided: "by its tp_plan".
  std::string why = {};
};

/// The part of one of `ranks` ranks, which is equally large for all. The model's tp_plan says what
/// is divided. A model without a plan is divided by the usual names of a transformer's layers, but
/// for what the ranks do not divide evenly; one whose layers have other names in all its tensors.
/// With and without a plan the inside of experts that are behind each other in one tensor is
/// divided, as a MixtureOfExperts has them.
/// If the transformer has fewer heads of keys and values than there are ranks, which the heads
/// divide, each rank has one head of layers that are of keys or of values by their names.
/// Errors: also for a pattern that names no tensor, and for fewer heads of keys and values than
///         ranks in one weight with the queries.
absl::StatusOr<TpPart> tp_part(const Architecture& architecture, int64_t ranks);

/// How many of a model's blocks each of `ranks` stages has. Parts are what is before the blocks, as
/// embeddings, each block, and what is behind them; stages have as many parts each as can be
/// (accelerate/pipeline/partition.h), as with a PipelinePlan that says nothing else.
/// Errors: for more stages than parts.
absl::StatusOr<std::vector<int64_t>> blocks_of_stages(int64_t blocks, int64_t ranks);

/// What each stage has of the model's tensors. Blocks are the modules with numbers, as "layers.3",
/// in the list that has most elements; what else there is stands before them if its name is that
/// of an embedding, and behind them otherwise. A tied tensor is in each stage that has one of its
/// names. Errors: also for a model without numbered blocks.
absl::StatusOr<std::vector<Architecture>> pp_parts(const Architecture& architecture, int64_t ranks);

struct EpPart {
  /// The model without its experts.
  Architecture rest;
  /// The experts that each rank has, whose rows no shards divide: bytes in float32.
  double experts = 0;
};

/// The part of one of `ranks` ranks, which is equally large for all. Experts are the tensors behind
/// a module "experts": one for each, as "experts.3.up_proj.weight", or stacked along their first
/// dim, as "experts.up". Errors: also for a model without any.
absl::StatusOr<EpPart> ep_part(const Architecture& architecture, int64_t ranks);

/// The class of modules that are never divided; others are of the class "Module".
inline constexpr char kNoSplitClass[] = "NoSplit";

/// Tensors are parameters, in the order of their names, in which numbers count as numbers.
ModuleTree module_tree(const Architecture& architecture);

}  // namespace accelerate::launcher::estimate
