/// What the ranks along pp tell each other before they save models and optimizers of which they
/// have stages. Every rank knows which tensors a model has. It knows neither in which dtypes other
/// ranks keep the tensors of their stages, nor which states their optimizers have for these.
///
/// `stages` are the ranks along pp; null: this rank has all stages.
/// Errors:  those of internal::agree, on all of these ranks.
/// Threads: the rank's thread. Collective over `stages`.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/checkpoint/objects/placed_part.h"
#include "accelerate/checkpoint/objects/sharded_state_dict.h"
#include "accelerate/comm/process_group.h"
#include "accelerate/optim/shared_objects.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {

/// In which dtype the first rank keeps each tensor that has elements of it. All ranks have the same
/// names.
std::vector<at::ScalarType> dtypes_of_stages(const ProcessGroupPtr& stages,
                                             const ShardPlaces& places,
                                             const NamedTensors& tensors);

/// The state of an optimizer, with the place of each tensor as places_of_state gives it.
struct PlacedState {
  StateDict state = {};
  std::vector<std::optional<PlacedPart>> places = {};
};

/// The state of this rank's optimizer, with what other ranks have of theirs: the values, and the
/// names and places of the tensors, which are empty here. All ranks get the same names in the same
/// order.
/// Errors: also those of places_of_state.
PlacedState state_of_stages(const ProcessGroupPtr& stages,
                            const internal::SharedOptimizer& optimizer, const ShardPlaces& places,
                            StateDict own);

}  // namespace accelerate
