/// A language model with quantised weights beside the same one without: memory, loss, text, and
/// adapters that are trained.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/examples/lm/training.h"
#include "accelerate/quantization/bnb_config.h"

namespace quantization {

struct Options {
  /// How the model is trained if there is no checkpoint, into `training.output_dir`/model.
  lm::Options training;
  /// A folder, a file or an index. Empty: see training.
  std::string checkpoint = {};
  accelerate::BnbQuantizationConfig config;
  /// Whether the model is loaded without quantisation as well, for which the checkpoint has values.
  bool compares = true;
  /// "auto", "balanced", "balanced_low_0", "sequential", or a map as JSON; empty: the rank's
  /// device.
  std::string device_map = {};
  /// Limits as JSON: {"0": "10GiB", "cpu": "30GiB"}; empty: what is free.
  std::string max_memory = {};
  std::string offload_folder = "offload";
  std::string prompt = "And God said, ";
  int64_t generate = 32;
  int64_t evaluation_sequences = 64;  ///< of the text's last tenth, over all ranks
  /// The quantised model goes there, as bitsandbytes has it. Empty: nowhere.
  std::string save = {};
  int64_t train_adapters = 0;  ///< steps
  int64_t adapter_rank = 8;
  double adapter_learning_rate = 3e-3;
};

/// What is measured of a loaded model, on this rank's devices of the kind that it computes on.
struct Row {
  std::string name;        ///< "bf16", "int8", "nf4", "nf4, double"
  int64_t held_bytes = 0;  ///< after loading
  int64_t peak_bytes = 0;  ///< while it generates text
  double token_seconds = 0;
  double loss = 0;  ///< the mean over tokens and ranks
  std::string text;
};

struct Result {
  /// The model that is not quantised, where it is wanted, and the quantised one.
  std::vector<Row> rows;
  /// The loss of the quantised one with its adapters, after their training.
  std::optional<double> adapter_loss;
};

/// Collective. Prints a table, texts and losses on the main rank. Errors: c10::ValueError for
/// options that contradict each other, the text or the model; CheckpointError;
/// c10::OutOfMemoryError.
Result compare(const Options& options);

}  // namespace quantization
