#include "accelerate/step/zero_division.h"

#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "accelerate/mesh/axis_set.h"
#include "accelerate/mesh/device_mesh.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/state/accelerator_state.h"

namespace accelerate::internal {

RankRoles ZeroDivision::roles(RankRoles of_mesh) const {
  RankRoles roles = std::move(of_mesh);
  roles.replicas = nullptr;
  roles.makes_shards = config_.stage > 0;
  if (!roles.makes_shards) return roles;
  const AxisSet model = roles.norm_axes - roles.shard_axes;
  roles.shards = roles.tokens.group;
  roles.shard_axes = roles.token_axes;
  roles.norm_axes = roles.shard_axes | model;
  roles.norm = model.empty() ? roles.shards : state_.device_mesh()->group(roles.norm_axes);
  return roles;
}

// Neighbours among the ranks with tokens of their own, as those of a node.
ProcessGroupPtr ZeroDivision::second_shards() {
  const int rank = state_.process_index();
  const Mesh mesh = state_.mesh();
  const AxisSet axes = {MeshAxis::kDp, MeshAxis::kCp, MeshAxis::kSp};
  const std::vector<int> all = mesh.group(rank, axes);
  const auto count = static_cast<int>(all.size());
  const auto ranks = static_cast<int>(config_.zero_hpz_partition_size);
  if (config_.stage < 3 || ranks <= 1 || ranks == count) return nullptr;
  TORCH_CHECK_VALUE(ranks < count && count % ranks == 0, "rank ", rank,
                    ": zero_hpz_partition_size=", ranks, ": it should be a factor of the ", count,
                    " ranks that share a model along dp",
                    mesh.size(axes) == mesh.size(MeshAxis::kDp) ? "" : " and its sequences");
  if (second_shards_ == nullptr || second_shards_->getSize() != ranks) {
    GroupOptions options = state_.partial_state().group_options();
    const auto first = all.begin() + mesh.coordinate(rank, axes) / ranks * ranks;
    options.name = absl::StrCat("zero_hpz from ", *first);
    options.ranks.assign(first, first + ranks);
    second_shards_ = state_.runtime().new_group(options);
  }
  return second_shards_;
}

}  // namespace accelerate::internal
