/// Trains a GPT on the bytes of a text. The same function on one rank and on many.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "accelerate/examples/gpt/shape.h"

namespace gpt {

struct Options {
  std::string data;  ///< path of a text
  Shape shape = {};
  int64_t batch_size = 4;  ///< sequences of a rank in each step
  int64_t steps = 100;
  std::string precision = {};  ///< "no", "bf16", "fp16", "fp8"; empty: the launcher's
  bool activation_checkpointing = false;
  std::string optimizer = "adamw";  ///< or "sgd", without momentum
  double learning_rate = 1e-3;
  uint64_t seed = 42;  ///< of the initial weights and the shuffling
  /// The loss is read, and a row printed, every so many steps and after the last one. 0: never.
  int64_t log_every = 10;
  /// Trackers that get the curves, by name, and the folder for those that write files.
  std::vector<std::string> log_with = {};
  std::string logging_dir = "logs";
};

struct Result {
  std::vector<double> losses;  ///< mean over ranks, one for each row of the table
  double step_seconds = 0;     ///< mean over the steps, by the Runtime's clock
  double tokens_per_second = 0;
  /// The largest use of any device; 0 if the devices do not count their memory.
  int64_t peak_memory_bytes = 0;
};

/// Collective. Prints a table of losses on the main rank. Errors: c10::ValueError for options that
/// the text or the model does not allow; c10::OutOfMemoryError.
Result train(const Options& options);

}  // namespace gpt
