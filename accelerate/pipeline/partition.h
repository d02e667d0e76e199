/// Which parts of a model, as its blocks, are in which stage of a pipeline.
///
/// Parts are in the order in which a forward pass goes through them. A stage is one or more parts
/// in a row. Cuts are the places of the first parts of all stages: {0, 3, 5} of eight parts are
/// three stages, with parts 0 to 2, 3 and 4, and 5 to 7.
/// Errors:  absl::InvalidArgument in one line, with the nearest that works.
/// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace accelerate::pipeline {

using StageCuts = std::vector<size_t>;

/// The cuts whose largest stage is as small as can be and, among these, whose stages are as equal
/// as can be (the sum of squares is least). Where several are equal in that, the first stages have
/// more. Weights are bytes of parts, or measured times.
/// Errors: no stage, more stages than parts, a negative weight, a sum above 2^63 - 1.
absl::StatusOr<StageCuts> cut_by_weight(absl::Span<const int64_t> weights, int stages);

/// Stages whose numbers of parts differ by one at most; the first ones have more.
/// Errors: as above.
absl::StatusOr<StageCuts> cut_by_count(size_t parts, int stages);

/// A stage begins at each of the names, and one at the first part.
/// Errors: a name that is not a part's, names that are not in the parts' order or occur twice, the
/// first part's name.
absl::StatusOr<StageCuts> cut_by_names(absl::Span<const std::string> parts,
                                       absl::Span<const std::string> begins);

}  // namespace accelerate::pipeline
