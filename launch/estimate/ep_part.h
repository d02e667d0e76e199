/// What one of the ranks along ep has of a model's experts.
///
/// Threads: pure functions.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "launch/estimate/architecture.h"

namespace accelerate::launcher::estimate {

struct EpPart {
  /// The model without its experts.
  Architecture rest;
  /// The experts that each rank has, whose rows no shards divide: bytes in float32.
  double experts = 0;
};

/// The part of one of `ranks` ranks, which is equally large for all. Experts are the tensors behind
/// a module "experts": one for each, as "experts.3.up_proj.weight", or stacked along their first
/// dim, as "experts.up". Errors: InvalidArgument for a model without any, and for a number of
/// experts that the ranks do not divide evenly, with the nearest number of ranks that does.
absl::StatusOr<EpPart> ep_part(const Architecture& architecture, int64_t ranks);

}  // namespace accelerate::launcher::estimate
