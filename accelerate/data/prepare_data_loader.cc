#include "accelerate/data/prepare_data_loader.h"

#include <memory>

#include "accelerate/state/gradient_state.h"
#include "accelerate/state/partial_state.h"

namespace accelerate::internal {

ShardOptions shard_options_of(const PrepareDataLoaderOptions& options, Runtime& runtime) {
  const PartialState& state = PartialState::get(runtime);
  const int world_size = options.num_processes.value_or(state.num_processes());
  const bool is_job = world_size == state.num_processes();
  return {.rank = options.process_index.value_or(state.process_index()),
          .world_size = world_size,
          .group = is_job ? state.group() : nullptr,
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
