/// Trains a language model on the bytes of a text. The same function on one rank and on many.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/examples/lm/config.h"

namespace lm {

struct Options {
  std::string data;  ///< path of a text; its last tenth is for the evaluation
  Config config = model_config("tiny");
  bool activation_checkpointing = false;
  /// For a model with experts: see accelerate::RouterOptions. 0: an expert takes all its tokens.
  double capacity_factor = 0;
  double balance_loss = 0.01;
  double z_loss = 0;
  std::string routing = "learned";   ///< or "balanced", "skewed"
  double skew = 2;                   ///< of a skewed routing
  std::string mixed_precision = {};  ///< "no", "bf16", "fp16", "fp8"; empty: the launcher's
  int64_t batch_size = 4;            ///< sequences of a rank in each micro-step
  std::optional<int64_t> gradient_accumulation_steps = {};  ///< absent: the launcher's
  std::string optimizer = "adamw";                          ///< or "sgd", without momentum
  double learning_rate = 1e-3;
  int64_t warmup_steps = 10;  ///< of the learning rate, which rises from 0 and then stays
  int64_t max_steps = 100;    ///< optimizer steps, over all runs
  /// The loss is read, and a row printed, every so many steps and after the last one. 0: never.
  int64_t log_every = 10;
  int64_t evaluation_sequences = 64;  ///< over all ranks, after the training; 0: no evaluation
  uint64_t seed = 42;                 ///< of the initial weights and the shuffling
  /// Checkpoints go to `output_dir`/checkpoints, the trained weights to `output_dir`/model. Empty:
  /// nothing is saved.
  std::string output_dir = {};
  int64_t checkpointing_steps = 100;  ///< a checkpoint every so many optimizer steps
  bool resume = false;                ///< from the latest complete checkpoint, if there is one
  /// Trackers that get the curves, by name, and the folder for those that write files.
  std::vector<std::string> log_with = {};
  std::string logging_dir = "logs";
};

struct Result {
  std::vector<double> losses;  ///< one for each row: the mean over ranks and micro-steps
  /// The mean over the sequences of the evaluation.
  std::optional<double> evaluation_loss = {};
  bool is_done_before = false;  ///< the checkpoint that it resumed from was the last
  double step_seconds = 0;  ///< mean over the optimizer steps of this run, by the Runtime's clock
  /// The largest use of any device; 0 if the devices do not count their memory.
  int64_t peak_memory_bytes = 0;
};

/// Collective. Prints the model and a table of losses on the main rank. Reads values of tensors
/// only for the table's rows and at the end of the evaluation. Errors: c10::ValueError for options
/// that the text or the model does not allow; c10::OutOfMemoryError.
Result train(const Options& options);

}  // namespace lm
