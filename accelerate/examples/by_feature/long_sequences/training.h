/// Trains a language model on sequences that ranks divide as the launcher's flags say: along cp,
/// along sp, or not at all. The loop is the same.
#pragma once

#include <cstdint>
#include <vector>

#include "accelerate/examples/lm/config.h"

namespace long_sequences {

struct Options {
  lm::Config config = lm::model_config("tiny", {.blocks = lm::Blocks::kLlama});
  bool activation_checkpointing = false;
  int64_t batch_size = 2;  ///< sequences in a step of ranks that train the same data
  int64_t max_steps = 10;
  double learning_rate = 1e-3;
  uint64_t seed = 42;
};

struct Result {
  std::vector<double> losses;  ///< by step: the mean over all tokens with labels
  double step_seconds = 0;     ///< the mean, by the Runtime's clock
  int64_t peak_memory_bytes = 0;
};

/// Collective. Errors: c10::ValueError for a length that ranks do not divide evenly.
Result train(const Options& options);

}  // namespace long_sequences
