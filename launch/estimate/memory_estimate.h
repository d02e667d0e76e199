/// How much memory a model takes, to load and to train, from its tensors' sizes.
///
/// Units:   bytes, as doubles: int4 makes halves of them, and no sum overflows.
/// Threads: pure functions.
/// Mirrors: accelerate commands/estimate.py, calculate_maximum_sizes and estimate_training_usage.
/// Differs: tensors of modules that have modules below them count as layers too; bfloat16 is there;
///          sharded training and activations are new.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launch/estimate/architecture.h"

namespace accelerate::launch::estimate {

/// float32, float16, bfloat16, int8, int4.
const std::vector<std::string>& estimate_dtypes();

/// With all floating-point tensors as float32; others as they are.
struct ModelSize {
  double total = 0;
  /// The largest module without modules below it, or of those that are never divided.
  double largest_layer = 0;
};

ModelSize model_size(const Architecture& architecture);

/// Bytes of `size_in_float32` in another dtype.
double size_in(const std::string& dtype, double size_in_float32);

/// What training with Adam has at its steps; the most of them is what it needs.
struct TrainingUsage {
  double model = 0;
  double gradients = 0;
  double optimizer = 0;
  double step = 0;

  double maximum() const;
};

/// Unset for dtypes that are not used in training. `total` is ModelSize's.
std::optional<TrainingUsage> training_usage(const std::string& dtype, double total);

/// How the model states of training are divided.
struct Division {
  int64_t tp_size = 1;
  int64_t dp_shard_size = 1;
  /// 0: nothing is sharded over `dp_shard_size`; 1: optimizer; 2: gradients too; 3: parameters too,
  /// which is FSDP.
  int zero_stage = 0;
};

/// Bytes on each rank for parameters, gradients and Adam's two moments in one dtype, of which each
/// is a whole model or its part. Stage 3 also holds the largest layer and its gradients whole.
/// Unset as above.
std::optional<double> divided_training(const std::string& dtype, const ModelSize& size,
                                       const Division& division);

struct ActivationOptions {
  int64_t batch_size = 1;
  int64_t sequence_length = 1;
  int64_t tp_size = 1;
  /// Whether attention keeps its scores, quadratic in the sequence's length; sdpa does not.
  bool keeps_attention_scores = false;
  bool activation_checkpointing = false;
};

/// Bytes on each rank that a transformer's layers keep for backward; embeddings and the output are
/// not in it. Formula 2 of Korthikanti et al. 2022 (arXiv 2205.05198), which has it for 2 bytes an
/// element. Unset as above.
std::optional<double> activation_bytes(const std::string& dtype, const TransformerShape& shape,
                                       const ActivationOptions& options);

/// "413.18 MB": steps of 1024, at most two decimals, at least one but for whole bytes.
std::string bytes_text(double bytes);

}  // namespace accelerate::launch::estimate
