#include "simulator/cluster/fault_grounds.h"

#include <optional>

#include "accelerate/mesh/mesh.h"
#include "simulator/cluster/link_faults.h"

namespace accelerate::simulator {

FaultGrounds grounds_of(const ClusterSpec& spec, const ClusterOptions& options) {
  FaultGrounds grounds{.world_size = spec.world_size(),
                       .ranks_per_node = spec.ranks_per_node,
                       .seed = options.seed,
                       .has_devices = spec.device.has_value(),
                       .has_simulated_disk = options.disk != nullptr || !options.node_disks.empty(),
                       .has_shared_disk = options.disk != nullptr};
  grounds.disk_takes_time =
      spec.disk.takes_time() && (grounds.has_simulated_disk || options.host_files_take_time);
  describe_links(spec, grounds);
  std::optional<Mesh> mesh = options.mesh;
  if (!mesh && options.fold) mesh = options.fold->mesh;
  if (mesh) {
    grounds.mesh_size = [mesh = *mesh](MeshAxis axis) { return mesh.size(axis); };
    grounds.coordinate = [mesh = *mesh](int rank, MeshAxis axis) {
      return mesh.coordinate(rank, axis);
    };
  }
  return grounds;
}

}  // namespace accelerate::simulator
