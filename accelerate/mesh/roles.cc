#include "accelerate/mesh/roles.h"

namespace accelerate {

using enum MeshAxis;

RankRoles rank_roles(const DeviceMesh& mesh, AxisSet divides, const ProcessGroupPtr& world) {
  const AxisSet model = divides & AxisSet{kPp, kTp};
  const AxisSet sequence = divides & AxisSet{kCp, kSp};
  const AxisSet tokens = AxisSet{kDp} | sequence;
  const AxisSet same_part = AxisSet::all() - model;
  const auto size = [&mesh](AxisSet axes) { return mesh.mesh().size(axes); };
  RankRoles roles{.loader = mesh.data_share(), .shard_axes = AxisSet{kDpShard} | sequence};
  roles.tokens = {.index = mesh.mesh().coordinate(mesh.rank(), tokens),
                  .count = size(tokens),
                  .group = mesh.group(tokens)};
  roles.shards = mesh.group(roles.shard_axes);
  roles.replicas = mesh.group(kDpReplicate);
  if (size(same_part) == size(tokens)) {
    roles.same_part = roles.tokens.group;
  } else {
    roles.same_part = size(same_part) == mesh.mesh().num_ranks() ? world : mesh.group(same_part);
  }
  roles.model = mesh.group(model);
  roles.norm_axes = roles.shard_axes | model;
  roles.norm = mesh.group(roles.norm_axes);
  return roles;
}

RankRoles rank_roles(const DataShare& share) {
  return {.loader = share, .tokens = share, .same_part = share.group};
}

}  // namespace accelerate
