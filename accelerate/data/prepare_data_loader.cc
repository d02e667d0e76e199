#include "accelerate/data/prepare_data_loader.h"

#include <memory>

#include "accelerate/state/gradient_state.h"
#include "accelerate/state/partial_state.h"

namespace accelerate::internal {

ShardOptions shard_options_of(const PrepareDataLoaderOptions& options, Runtime& runtime) {
  const PartialState& state = PartialState::get(runtime);
  const DeviceMesh* mesh = options.torch_device_mesh;
  const int shares_of_job = mesh ? mesh->size(MeshAxis::kDp) : state.num_processes();
  const int num_shares = options.num_processes.value_or(shares_of_job);
  return {.share = options.process_index.value_or(mesh ? mesh->coordinate(MeshAxis::kDp)
                                                       : state.process_index()),
          .num_shares = num_shares,
          .group = num_shares == shares_of_job || num_shares == state.num_processes()
                       ? state.group()
                       : nullptr,
          .split_batches = options.split_batches,
          .dispatch_batches = options.dispatch_batches,
          .even_batches = options.even_batches,
          .use_seedable_sampler = options.use_seedable_sampler,
          .data_seed = options.data_seed,
          .rng_types = options.rng_types,
          .device = options.device.value_or(state.device()),
          .device_placement = options.put_on_device,
          .non_blocking = options.non_blocking,
          .gradient_state =
              &runtime.shared<GradientState>([] { return std::make_unique<GradientState>(); })};
}

}  // namespace accelerate::internal
