#include "accelerate/step/zero_division.h"

#include <utility>

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "accelerate/state/accelerator_state.h"

namespace accelerate::internal {

RankRoles ZeroDivision::roles(RankRoles of_mesh) const {
  RankRoles roles = std::move(of_mesh);
  roles.makes_shards = config_.stage > 0;
  roles.shards = roles.makes_shards ? state_.group() : nullptr;
  roles.replicas = nullptr;
  roles.shard_axes = roles.norm_axes = {MeshAxis::kDp};
  roles.norm = roles.shards;
  return roles;
}

// Consecutive ranks, as those of a node.
ProcessGroupPtr ZeroDivision::second_shards() {
  const int all = state_.num_processes();
  const auto ranks = static_cast<int>(config_.zero_hpz_partition_size);
  if (config_.stage < 3 || ranks <= 1 || ranks == all) return nullptr;
  TORCH_CHECK_VALUE(ranks < all && all % ranks == 0, "rank ", state_.process_index(),
                    ": zero_hpz_partition_size=", ranks, ": it should be a factor of the ", all,
                    " ranks that share a model along dp");
  if (second_shards_ == nullptr || second_shards_->getSize() != ranks) {
    GroupOptions options = state_.partial_state().group_options();
    const int first = state_.process_index() / ranks * ranks;
    options.name = absl::StrCat("zero_hpz from ", first);
    for (int rank = first; rank < first + ranks; ++rank) options.ranks.push_back(rank);
    second_shards_ = state_.runtime().new_group(options);
  }
  return second_shards_;
}

}  // namespace accelerate::internal
