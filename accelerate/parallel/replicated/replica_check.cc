#include "accelerate/parallel/replicated/replica_check.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/mesh_axis.h"
#include "accelerate/mesh/axis_set.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/plan/plan.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {

ReplicaCheck::ReplicaCheck(ProcessGroupPtr group)
    : group_(std::move(group)),
      name_(absl::StrCat("the model in group \"", group_->getGroupName(), "\"")) {}

void ReplicaCheck::compare_by_gathering(const ModelPlan& plan) {
  const AxisSet axes = plan.roles.token_axes;
  const bool is_plain = plan.mesh.several(axes) == AxisSet{MeshAxis::kDpReplicate};
  gathering_ = RanksAlong{.axis = is_plain ? MeshAxis::kDpReplicate : MeshAxis::kDpCpSp,
                          .group = group_,
                          .ranks = plan.mesh.group(plan.rank, axes)};
}

void ReplicaCheck::check(const std::vector<std::pair<std::string, at::Tensor>>& parameters,
                         const std::vector<int>& ended, bool is_collective) const {
  // The replicas of ranks whose data has ended are outdated, so only the other ranks compare
  // theirs. The check counts ranks by name: the name must be the same on these ranks alone.
  const std::string name =
      ended.empty() ? name_ : absl::StrCat(name_, ", without ranks ", absl::StrJoin(ended, ", "));
  const bool compared = Runtime::current().check_replicas(name, group_, ended, parameters);
  if (gathering_ && is_collective && !compared) {
    accelerate::compare_by_gathering(*gathering_, "values", parameters);
  }
}

}  // namespace accelerate
