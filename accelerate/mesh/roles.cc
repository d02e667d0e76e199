#include "accelerate/mesh/roles.h"

namespace accelerate {

using enum MeshAxis;

RankRoles rank_roles(const DeviceMesh& mesh, AxisSet divides, const ProcessGroupPtr& world,
                     bool divides_rows) {
  const AxisSet model = divides & AxisSet{kPp, kTp};
  const AxisSet sequence = mesh.mesh().several(divides & AxisSet{kCp, kSp});
  const AxisSet tokens = AxisSet{kDp} | sequence;
  const AxisSet same_part = AxisSet::all() - model;
  const auto size = [&mesh](AxisSet axes) { return mesh.mesh().size(axes); };
  const bool has_shards = divides_rows || size({kDpShard}) > 1 || size({kEp}) > 1;
  RankRoles roles{.loader = mesh.data_share(),
                  .token_axes = tokens,
                  .shard_axes = AxisSet{kDpShard} | (has_shards ? sequence : AxisSet())};
  roles.tokens = {.index = mesh.mesh().coordinate(mesh.rank(), tokens),
                  .count = size(tokens),
                  .group = mesh.group(tokens)};
  roles.shards = mesh.group(roles.shard_axes);
  roles.makes_shards = roles.shards != nullptr;
  roles.replicas = mesh.group(kDpReplicate);
  // Axes that have those of `tokens` among them.
  const auto group_beyond_tokens = [&](AxisSet axes) {
    if (size(axes) == size(tokens)) return roles.tokens.group;
    return size(axes) == mesh.mesh().num_ranks() ? world : mesh.group(axes);
  };
  roles.same_part = group_beyond_tokens(same_part);
  roles.scales = group_beyond_tokens(tokens | (divides & AxisSet{kTp}));
  roles.norm_axes = roles.shard_axes | model;
  roles.norm = mesh.group(roles.norm_axes);
  return roles;
}

RankRoles rank_roles(const DataShare& share) {
  return {.loader = share,
          .tokens = share,
          .token_axes = {kDp},
          .same_part = share.group,
          .scales = share.group};
}

}  // namespace accelerate
