/// What one of the ranks along tp has of a model's tensors.
///
/// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
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
/// Errors: InvalidArgument for a pattern that names no tensor, for a tensor that the ranks do not
///         divide evenly, with the nearest number of ranks that does, and for fewer heads of keys
///         and values than ranks in one weight with the queries.
absl::StatusOr<TpPart> tp_part(const Architecture& architecture, int64_t ranks);

}  // namespace accelerate::launcher::estimate
