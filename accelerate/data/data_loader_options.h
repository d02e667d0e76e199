/// What one can ask of a DataLoader, of its sharded form, and of all loaders an Accelerator
/// prepares.
#pragma once

#include <cstdint>
#include <optional>

#include <c10/core/Device.h>

namespace accelerate {

class GradientState;

/// How a DataLoader walks its dataset.
struct DataLoaderOptions {
  /// Samples in a batch. Positive.
  int64_t batch_size = 1;
  /// Visits the samples in a new random order each epoch.
  bool shuffle = false;
  /// Leaves out a last batch that would be short.
  bool drop_last = false;
  /// Of the shuffling; epoch e uses seed + e. Absent: drawn from LibTorch's default CPU generator
  /// when the loader is made.
  std::optional<uint64_t> seed = std::nullopt;
};

/// Which share of a loader's batches a rank gets, and what happens to them.
struct ShardOptions {
  /// Position among the ranks that read different samples, and their number.
  int rank = 0;
  int world_size = 1;
  /// The loader's batch size is that of all ranks together, instead of each rank's.
  bool split_batches = false;
  /// Fills the last round up with the epoch's first samples, so that all ranks get equally many
  /// batches of equal size.
  bool even_batches = true;
  /// Where batches go if `device_placement`.
  c10::Device device = c10::kCPU;
  bool device_placement = true;
  /// Told about every pass; may be null. Must outlive the loader.
  GradientState* gradient_state = nullptr;
  /// Replaces the loader's seed; the same on every rank. Absent: the loader's.
  std::optional<uint64_t> seed = std::nullopt;
};

/// How an Accelerator prepares data loaders.
/// Mirrors: accelerate utils/dataclasses.py, DataLoaderConfiguration.
struct DataLoaderConfiguration {
  /// See ShardOptions.
  bool split_batches = false;
  bool even_batches = true;
};

}  // namespace accelerate
