/// A loader's share for a rank by HF Accelerate's functions and names, for programs that have no
/// Accelerator.
///
/// Threads: the rank's thread.
/// Mirrors: accelerate data_loader.py, prepare_data_loader and get_sampler.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <c10/core/Device.h>

#include "accelerate/comm/random.h"
#include "accelerate/data/data_loader.h"
#include "accelerate/data/data_loader_options.h"
#include "accelerate/mesh/device_mesh.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {

/// See ShardOptions for what is not explained here.
struct PrepareDataLoaderOptions {
  /// Where batches go with `put_on_device`. Absent: the rank's device. (In HF Accelerate they stay
  /// where they are then.)
  std::optional<c10::Device> device = std::nullopt;
  /// How many ranks read different samples, and which of them this is. Absent: the data shares of
  /// `torch_device_mesh`, or the ranks of the job.
  std::optional<int> num_processes = std::nullopt;
  std::optional<int> process_index = std::nullopt;
  bool split_batches = false;
  bool put_on_device = false;
  /// Empty: no generators are synchronised.
  std::vector<RNGType> rng_types = {};
  /// Needs put_on_device, and the job's ranks.
  std::optional<bool> dispatch_batches = std::nullopt;
  bool even_batches = true;
  bool use_seedable_sampler = false;
  std::optional<uint64_t> data_seed = std::nullopt;
  bool non_blocking = false;
  /// Ranks that differ along its axes tp, cp, sp or pp only get the same batches. Null: all ranks
  /// get different ones. Used during the call only.
  const DeviceMesh* torch_device_mesh = nullptr;
};

namespace internal {

ShardOptions shard_options_of(const PrepareDataLoaderOptions& options, Runtime& runtime);

}  // namespace internal

/// This rank's share of the loader. Its passes register with the rank's GradientState; no
/// checkpoint has its position (see DataLoader::state_dict). A prepared loader is returned
/// unchanged. `slice_fn_for_dispatch` replaces the slicing by rows of dispatched batches.
/// Collective. Errors: as DataLoader::shard.
template <typename Dataset, typename Collate>
DataLoader<Dataset, Collate> prepare_data_loader(
    const DataLoader<Dataset, Collate>& dataloader, const PrepareDataLoaderOptions& options = {},
    SliceFunction<typename DataLoader<Dataset, Collate>::Batch> slice_fn_for_dispatch = {},
    Runtime& runtime = Runtime::current()) {
  if (dataloader.is_prepared()) return dataloader;
  return dataloader.shard(internal::shard_options_of(options, runtime),
                          std::move(slice_fn_for_dispatch));
}

/// The sampler that decides about the loader's order; see DataLoader::sampler. Local.
template <typename Dataset, typename Collate>
std::shared_ptr<Sampler> get_sampler(const DataLoader<Dataset, Collate>& dataloader) {
  return dataloader.sampler();
}

}  // namespace accelerate
