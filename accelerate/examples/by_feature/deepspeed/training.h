/// Trains a language model as a configuration of DeepSpeed says, or as the launcher's flags do. The
/// optimizer and its schedule are the configuration's where it has them.
#pragma once

#include <cstdint>
#include <vector>

#include "accelerate/examples/lm/config.h"

namespace deepspeed {

struct Options {
  lm::Config config = lm::model_config("tiny");
  int64_t batch_size = 2;  ///< sequences of a rank in a micro-step
  int64_t max_steps = 10;  ///< micro-steps
  double learning_rate = 1e-3;
  uint64_t seed = 42;
};

struct Result {
  std::vector<double> losses;  ///< by micro-step: the mean over ranks
  double learning_rate = 0;    ///< after the last step
  double gradient_norm = 0;    ///< of the last step; 0 without one, and without ZeRO
  double step_seconds = 0;     ///< the mean, by the Runtime's clock
  int64_t peak_memory_bytes = 0;
};

/// Collective. Errors: c10::ValueError for a configuration that contradicts itself or the program.
Result train(const Options& options);

}  // namespace deepspeed
