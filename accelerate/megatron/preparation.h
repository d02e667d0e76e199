/// From the objects that a program prepares to Megatron-LM's arguments.
///
/// Errors:  c10::ValueError.
/// Threads: pure functions.
/// Mirrors: accelerate accelerator.py, Accelerator._prepare_megatron_lm, up to where the engine is
///          made.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "accelerate/megatron/dummy_objects.h"
#include "accelerate/megatron/model_parsers.h"

namespace accelerate {

struct MegatronOptimizerFacts {
  std::string class_name;
  /// Options by their names in PyTorch.
  nlohmann::json defaults;
};

/// What is said of the objects of one call of prepare.
struct MegatronObjects {
  std::optional<MegatronModelFacts> model = std::nullopt;
  std::optional<MegatronOptimizerFacts> optimizer = std::nullopt;
  std::optional<MegatronLMDummyScheduler> scheduler = std::nullopt;
  /// A scheduler of another kind is among them.
  bool has_other_scheduler = false;
  /// The loaders' batch sizes, in order.
  std::vector<int64_t> batch_sizes = {};
  std::optional<MegatronLMDummyDataLoader> dummy_loader = std::nullopt;
  /// Shapes of the first loader's first batch.
  std::optional<MegatronBatchShapes> batch = std::nullopt;
  /// Models that the Accelerator prepared before.
  int64_t models_before = 0;
};

/// Sets the plugin's sizes, arguments and numbers of steps.
/// Errors: for several models, no loader, a dummy loader without "micro_batch_size", a scheduler
///         that is not the dummy, other_megatron_args with another value than the plugin's fields
///         or the objects say, and those of the plugin's functions and parallelism_of.
void set_prepared_args(MegatronLMPlugin& plugin, const MegatronObjects& objects, int64_t num_ranks);

/// How many samples a rank's loader gives in a batch: those of all micro-batches of a step.
/// \pre set_training_args was called.
int64_t megatron_batch_size(const MegatronLMPlugin& plugin);

}  // namespace accelerate
