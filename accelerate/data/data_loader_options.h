/// The options of a DataLoader, of its sharded form, and of all loaders that an Accelerator
/// prepares.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "absl/time/time.h"
#include "accelerate/base/enums.h"
#include "accelerate/base/fields.h"
#include "accelerate/comm/random.h"
#include "accelerate/data/sampler.h"
#include "accelerate/data/worker.h"

namespace accelerate {

class GradientState;

/// How a DataLoader walks its dataset.
struct DataLoaderOptions {
  /// Samples in a batch. Positive.
  int64_t batch_size = 1;
  /// Visits a map-style dataset's samples in a new random order in each pass.
  bool shuffle = false;
  /// Leaves out a last batch that would be short.
  bool drop_last = false;
  /// Draws the shuffling, and each pass's base seed for its workers. Undefined:
  /// LibTorch's default CPU generator.
  at::Generator generator = {};
  /// The order, instead of `shuffle`. Map-style datasets only.
  std::shared_ptr<Sampler> sampler = nullptr;
  /// The batches, instead of `sampler`, `batch_size` and `drop_last`. Map-style datasets only.
  std::shared_ptr<BatchSampler> batch_sampler = nullptr;
  /// Threads that read and collate batches ahead of the loop; 0: the loop's own thread does. A
  /// stream is one sequence and gets one thread, which reads as far ahead as all workers would.
  int num_workers = 0;
  /// Batches that each worker may be ahead. Positive.
  int prefetch_factor = 2;
  /// Puts batches into page-locked memory, from which devices copy asynchronously. It does
  /// nothing without such a device.
  bool pin_memory = false;
  /// The loop's time-out for a worker's batch; zero: none.
  absl::Duration timeout = absl::ZeroDuration();
  /// Called on each worker's thread before its first batch.
  std::function<void(const WorkerInfo&)> worker_init = nullptr;
};

/// A rank's share of a loader's batches, and their way to the device.
///
/// Ranks that split a model (tensor, context or pipeline parallel ones) have the same share: they
/// get the same batches in the same order. Those that divide sequences have shares of their own,
/// and work through the batches of all of them together (`sequence_group`).
struct ShardOptions {
  /// Position among the ranks that read different samples, and how many such positions there are.
  int share = 0;
  int num_shares = 1;
  /// All ranks of the job, as many for each share; null where there is one. Needed to dispatch, and
  /// to synchronise seeds and generators.
  c10::intrusive_ptr<c10d::ProcessGroup> group = {};
  /// The loader's batch size is that of all shares together, instead of each share's.
  bool split_batches = false;
  /// Only rank 0 reads and sends the other ranks their rows. Absent: true for streams that are
  /// placed on the device.
  std::optional<bool> dispatch_batches = std::nullopt;
  /// Pads the last round with the pass's first samples, so that all shares have equally many
  /// batches of equal size. One share alone is not padded.
  bool even_batches = true;
  /// Shuffles by SeedableRandomSampler, with this seed (absent: the one that rank 0's default
  /// generator was seeded with).
  bool use_seedable_sampler = false;
  std::optional<uint64_t> data_seed = std::nullopt;
  /// The generators that are set to rank 0's state at the start of each pass; kGenerator is the
  /// sampler's.
  std::vector<RNGType> rng_types = {RNGType::kGenerator};
  /// Where batches go if `device_placement`, and whether the host waits for the copy.
  c10::Device device = c10::kCPU;
  bool device_placement = true;
  bool non_blocking = false;
  /// The number of batches that are copied to the device while the loop uses one. A worker reads
  /// them even if num_workers is 0, and the copies run asynchronously on the device.
  int device_prefetch = 0;
  /// Whether the Accelerator that prepared the loader keeps its position in checkpoints.
  bool use_stateful_dataloader = false;
  /// The ranks, in the order of their shares, which are neighbours, that work through the batches
  /// of all of them: first all get their parts of the sequences of the first one's batch, then of
  /// the second one's. Such a loader gives as many batches as they have together; sequence_parts.h
  /// says what becomes of a batch. Null: each rank gets its own batches.
  c10::intrusive_ptr<c10d::ProcessGroup> sequence_group = {};
  /// The length of all sequences; 0: batches may differ.
  int64_t sequence_length = 0;
  /// Every pass registers with it; may be null. Must outlive the loader.
  GradientState* gradient_state = nullptr;
};

/// The device_prefetch of a kind of job: on TPUs the host sends batches ahead of time.
constexpr int device_prefetch_on(DistributedType type) {
  return type == DistributedType::kXla ? 2 : 0;
}

/// How an Accelerator prepares data loaders.
/// Mirrors: accelerate utils/dataclasses.py, DataLoaderConfiguration.
struct DataLoaderConfiguration {
  /// See ShardOptions.
  bool split_batches = false;
  std::optional<bool> dispatch_batches = std::nullopt;
  bool even_batches = true;
  bool use_seedable_sampler = false;
  std::optional<uint64_t> data_seed = std::nullopt;
  bool non_blocking = false;
  /// Checkpoints have the loaders' positions and epochs, and training goes on there; to skip
  /// batches as well is an error. Off: load_state leaves loaders as they are, and the program sets
  /// the epoch and skips batches by itself. state_dict() of a loader gives its position in any
  /// case.
  bool use_stateful_dataloader = false;
};

/// For to_dict and to_kwargs.
ACCELERATE_FIELDS(DataLoaderConfiguration, split_batches, dispatch_batches, even_batches,
                  use_seedable_sampler, data_seed, non_blocking, use_stateful_dataloader)

}  // namespace accelerate
