/// What a program prepares where Megatron-LM's arguments have the data or the schedule.
///
///     MegatronLMDummyDataLoader loader({{"data_path", {"corpus_text_document"}},
///                                       {"split", "949,50,1"},
///                                       {"micro_batch_size", 4}});
///     MegatronLMDummyScheduler scheduler({.total_num_steps = 1000, .warmup_num_steps = 100});
///
/// Errors:  c10::ValueError naming the argument.
/// Threads: values.
/// Mirrors: accelerate utils/megatron_lm.py, MegatronLMDummyDataLoader and
///          MegatronLMDummyScheduler.
/// Differs: arguments that nothing reads are refused, and the scheduler needs no optimizer.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "accelerate/config/megatron_arguments.h"

namespace accelerate {

/// Files of tokens as a loader.
struct MegatronLMDummyDataLoader {
  /// An object of arguments of Megatron-LM; accelerate/config/megatron_arguments.h has their names.
  explicit MegatronLMDummyDataLoader(const nlohmann::ordered_json& dataset_kwargs)
      : dataset_args(dataset_kwargs) {
    check_megatron_arguments(dataset_args, "MegatronLMDummyDataLoader");
    dataset_args["megatron_dataset_flag"] = true;
  }

  /// With "megatron_dataset_flag", which is true.
  nlohmann::ordered_json dataset_args;
};

struct MegatronLMDummyScheduler {
  /// Steps of all data-parallel ranks together. Absent: the plug-in must have train_iters.
  std::optional<int64_t> total_num_steps = std::nullopt;
  int64_t warmup_num_steps = 0;
  /// Anything else, kept for the program.
  std::map<std::string, nlohmann::ordered_json> kwargs = {};
};

}  // namespace accelerate
