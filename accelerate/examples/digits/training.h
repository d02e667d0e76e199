/// Trains a small convolutional net on the digits. The same function on one rank and on many.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace digits {

struct Options {
  std::string data;  ///< path of digits.safetensors
  int64_t epochs = 30;
  int64_t batch_size = 64;  ///< over all ranks; a rank gets its share, at least one sample
  double learning_rate = 2e-3;
  uint64_t seed = 42;  ///< of the split, the initial weights and the shuffling
  double dropout = 0.0;
  int64_t max_steps = 0;  ///< stop early; 0: no limit
  /// Checkpoints go to `output_dir`/checkpoints, the trained weights to `output_dir`/model. Empty:
  /// nothing is saved.
  std::string output_dir;
  int64_t checkpointing_steps = 100;  ///< a checkpoint every so many optimizer steps
  bool resume = false;                ///< from the latest complete checkpoint, if there is one
  /// Trackers that get the curves, by name, and the folder for those that write files.
  std::vector<std::string> log_with;
  std::string logging_dir = "logs";
};

struct Result {
  std::vector<double> step_losses;   ///< mean over ranks, one per optimizer step of this run
  std::vector<double> epoch_losses;  ///< mean over the epoch's steps
  double test_accuracy = 0;
  bool is_done_before = false;  ///< the checkpoint that it resumed from was the last
  double step_seconds = 0;      ///< mean over the optimizer steps, by the Runtime's clock
  /// The largest use of any device; 0 if the devices do not count their memory.
  int64_t peak_memory_bytes = 0;
};

/// Collective. Prints a table of losses on the main rank.
Result train(const Options& options);

}  // namespace digits
