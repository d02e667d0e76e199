#include "accelerate/step/job_roles.h"

#include "accelerate/forward/prepared_model.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/state/accelerator_state.h"
#include "accelerate/step/training_state.h"
#include "accelerate/step/zero_division.h"

namespace accelerate::internal {

AxisSet divided_axes(const TrainingState& training) {
  AxisSet axes;
  for (const auto& model : training.models) {
    if (model->placements().is_cut) axes |= model->placements().layout->divides();
  }
  return axes;
}

RankRoles roles_of(const AcceleratorState& state, const TrainingState& training, AxisSet divides) {
  RankRoles roles = state.roles(divides);
  if (training.division == nullptr) return roles;
  roles.shards = training.division->shards();
  roles.replicas = nullptr;
  if (roles.tokens.group == nullptr) roles.tokens.group = roles.same_part = roles.shards;
  roles.shard_axes = roles.norm_axes = {MeshAxis::kDp};
  roles.norm = roles.shards;
  return roles;
}

bool makes_shards(const RankRoles& roles, const TrainingState& training) {
  return roles.shards != nullptr ||
         (training.division != nullptr && training.division->makes_shards());
}

}  // namespace accelerate::internal
