/// "auto" in a configuration of DeepSpeed, filled in from what is prepared.
///
/// Errors:  c10::ValueError naming the keys that cannot be filled in, or what contradicts what.
/// Threads: values.
/// Mirrors: accelerate accelerator.py, the first half of Accelerator._prepare_deepspeed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "accelerate/base/libtorch_fwd.h"

namespace accelerate {

struct DeepSpeedPlugin;
struct DummyOptim;
struct DummyScheduler;
class FileSystem;

/// What one call of prepare() has.
struct DeepSpeedFacts {
  int64_t num_processes = 1;
  /// How many of them work on one share of the data.
  int64_t ranks_per_share = 1;
  bool split_batches = false;
  /// The Accelerator's.
  int64_t gradient_accumulation_steps = 1;
  /// The batch size of each loader; absent where it has none.
  std::vector<std::optional<int64_t>> batch_sizes = {};
  bool has_model = true;
  /// The sizes of the model's hidden states; empty: it does not say them.
  std::vector<int64_t> hidden_sizes = {};

  /// The program's own, or one of the placeholders.
  bool has_optimizer = false;
  bool has_scheduler = false;
  const DummyOptim* dummy_optimizer = nullptr;
  const DummyScheduler* dummy_scheduler = nullptr;
};

struct DeepSpeedCompletion {
  /// What training follows: the configuration's.
  int64_t gradient_accumulation_steps = 1;
  /// What rank 0 should be told.
  std::vector<std::string> notes;
};

/// Fills the plugin's configuration in, which is unchanged after an error. Without a model only
/// what does not depend on one.
DeepSpeedCompletion complete(DeepSpeedPlugin& plugin, const DeepSpeedFacts& facts);

/// `hidden_size`, or else all of `hidden_sizes`, of a model's config.json, or of the "text_config"
/// in it; empty without them.
std::vector<int64_t> hidden_sizes_of(const nlohmann::ordered_json& model_config);

/// Those that the plugin gives, or else those that the model does (ModelStructure).
std::vector<int64_t> hidden_sizes_of(const DeepSpeedPlugin& plugin, const torch::nn::Module& model,
                                     FileSystem& files);

}  // namespace accelerate
