/// Loads a language model's checkpoint by a device map, and generates text with it. Without
/// LibTorch.
#pragma once

#include <cstdint>
#include <string>

#include "accelerate/examples/lm/config.h"

namespace big_model_load {

struct Options {
  lm::Config config;
  /// A folder, a file or an index.
  std::string checkpoint;
  /// Whether rank 0 writes the checkpoint first, with random values in shards of this size.
  bool write = false;
  std::string max_shard_size = "500MB";
  int64_t seed = 0;
  /// "auto", "balanced", "balanced_low_0", "sequential", or a map as JSON.
  std::string device_map = "auto";
  /// Limits as JSON: {"0": "10GiB", "cpu": "30GiB"}; empty: what is free.
  std::string max_memory;
  std::string offload_folder = "offload";
  bool offload_buffers = false;
  /// "" is the checkpoint's.
  std::string dtype;
  /// Rank 0 reads for all; otherwise each rank reads.
  bool broadcast_from_rank0 = false;
  /// How many tokens the model generates, where the map has placed it.
  int generate = 0;
};

struct Result {
  int64_t bytes = 0;
  double seconds = 0;
  /// The time of a generated token. The first, with which the model's order is learnt, does not
  /// count.
  double seconds_per_token = 0;
};

/// Builds the model without memory and loads it; prints what lies where on rank 0. Collective.
Result load(const Options& options);

}  // namespace big_model_load
