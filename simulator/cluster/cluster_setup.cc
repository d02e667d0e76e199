#include "simulator/cluster/cluster_setup.h"

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/platform/environment.h"
#include "simulator/cluster/link_faults.h"
#include "simulator/hardware/driver_memory.h"

namespace accelerate::simulator {
namespace {

// More ranks than these make folding pointless.
constexpr size_t kMostTouchedRanks = 64;

// The settings of LibTorch's allocator; the newer variable counts first, as there.
void read_allocator_settings(const Environment& environment, ClusterSpec& spec) {
  if (!spec.device) return;
  for (const char* variable : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
    const std::optional<std::string> settings = environment.get(variable);
    if (!settings) continue;
    const std::optional<std::string> problem = apply_allocator_settings(*settings, *spec.device);
    TORCH_CHECK_VALUE(!problem, variable, ": ", problem.value_or(""));
    return;
  }
}

}  // namespace

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

FoldPlan fold_plan(const ClusterSpec& spec, const ClusterOptions& options) {
  if (!options.fold) return FoldPlan(spec.world_size());
  TORCH_CHECK_VALUE(options.numerics == Numerics::kShapes || options.fold->with_real_numerics,
                    "ClusterOptions::fold needs numerics = shapes: ranks that compute values have "
                    "data of their own, so that none can be counted for another");
  std::vector<int> touched;
  if (options.fold->rank_0_apart) touched.push_back(0);
  for (const FileFault& fault : options.file_faults) {
    if (fault.rank >= 0 && fault.rank < spec.world_size()) touched.push_back(fault.rank);
  }
  const std::vector<int> struck = ranks_touched(options.faults, grounds_of(spec, options));
  TORCH_CHECK_VALUE(struck.size() <= kMostTouchedRanks, "faults strike ", struck.size(),
                    " ranks, each of which has to be executed; with folding there may be ",
                    kMostTouchedRanks, ": name fewer, or run without ClusterOptions::fold");
  touched.insert(touched.end(), struck.begin(), struck.end());
  return FoldPlan(spec, *options.fold, touched, options.seed);
}

ClusterSpec parsed(absl::string_view text, const ClusterOptions& options) {
  absl::StatusOr<ClusterSpec> spec = ClusterSpec::parse(text);
  TORCH_CHECK_VALUE(spec.ok(), spec.status().message());
  const absl::Status devices = internal::check_devices(*spec, text);
  TORCH_CHECK_VALUE(devices.ok(), devices.message());
  read_allocator_settings(options.environment, *spec);
  return *std::move(spec);
}

}  // namespace accelerate::simulator
