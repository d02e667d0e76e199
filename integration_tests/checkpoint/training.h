/// A small training run with everything that a checkpoint must bring back: dropout, shuffling,
/// accumulation with a short last window, a schedule, fp16's scaler, batch statistics, momentum.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include "accelerate/accelerate.h"

namespace accelerate::checkpoint_tests {

struct TrainingOptions {
  /// Where checkpoints go, with automatic names.
  std::string project_dir = "/sim/run";
  PrecisionType precision = PrecisionType::kNo;
  int64_t accumulation = 1;
  bool uses_adam = false;
  /// How models are divided; absent: each rank has a replica.
  std::optional<ParallelismOptions> parallelism = std::nullopt;
  int64_t epochs = 3;
  /// Saves after each so many micro-steps; 0: never.
  int64_t save_every = 0;
  std::optional<int64_t> total_limit = std::nullopt;
  bool asynchronous = false;
  /// Where not empty: each save goes there, and replaces the one before.
  std::string folder = {};
  /// Only so many saves are synced.
  int64_t durable_saves = std::numeric_limits<int64_t>::max();
  /// Called before each save with the folder that will be the checkpoint.
  std::function<void(FileSystem& files, const std::string& folder)> on_save = {};
  /// Ends after so many micro-steps, with a save if nothing was saved there.
  std::optional<int64_t> stop_after = std::nullopt;
  /// Loads the latest complete checkpoint if there is one.
  bool resumes = false;
  /// Told of each micro-step, and, when a save is complete and durable for sure, after which one it
  /// saved.
  std::function<void(int64_t step, double loss)> on_step = {};
  std::function<void(int64_t step)> on_saved = {};
};

/// A rank's losses, bit for bit, by the number of the micro-step from 1 on, and at 0 a sum over the
/// weights at the end.
using Losses = std::map<int64_t, double>;

/// Collective. Also tells which step the run began with.
struct TrainingResult {
  Losses losses;
  int64_t resumed_at = 0;
};
TrainingResult train(const TrainingOptions& options);

/// How many micro-steps a rank makes without interruption.
int64_t micro_steps(const TrainingOptions& options, int num_processes);

}  // namespace accelerate::checkpoint_tests
