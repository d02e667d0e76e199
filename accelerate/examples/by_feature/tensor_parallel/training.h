/// Trains a small language model whose layers ranks divide as the launcher's flags say.
#pragma once

#include <cstdint>
#include <vector>

namespace tensor_parallel {

struct Options {
  bool sequence_parallel = false;
  bool keep_gathered_inputs = false;
  bool parallel_loss = false;
  bool print_layout = false;
  double dropout = 0.1;
  int64_t batch_size = 4;  ///< sequences in a step of ranks that train the same data
  int64_t max_steps = 10;
  double learning_rate = 3e-3;
  uint64_t seed = 42;
};

struct Result {
  std::vector<double> losses;  ///< by step: the mean over ranks
  double step_seconds = 0;     ///< the mean, by the Runtime's clock
  int64_t peak_memory_bytes = 0;
};

/// Collective. Errors: c10::ValueError for a size of tp that does not divide the model.
Result train(const Options& options);

}  // namespace tensor_parallel
