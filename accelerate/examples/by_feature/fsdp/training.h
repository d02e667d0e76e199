/// Trains a language model that ranks divide as the launcher's flags say. Nothing in the loop knows
/// of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "accelerate/examples/lm/config.h"

namespace fsdp {

struct Options {
  lm::Config config = lm::model_config("tiny");
  int64_t batch_size = 2;  ///< sequences of a rank in a step
  int64_t max_steps = 10;
  double learning_rate = 1e-3;
  uint64_t seed = 42;
  /// The file of the trained weights, whole, which rank 0 writes. Empty: none.
  std::string weights = {};
};

struct Result {
  std::vector<double> losses;  ///< by step: the mean over ranks
  double step_seconds = 0;     ///< the mean, by the Runtime's clock
  int64_t peak_memory_bytes = 0;
};

/// Collective. Prints the units of sharding on the main rank. Errors: c10::ValueError for variables
/// FSDP_* that the model does not allow.
Result train(const Options& options);

}  // namespace fsdp
