/// Small jobs that ZeRO divides, with and without it the same loop.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "accelerate/accelerate.h"
#include "accelerate/config/deepspeed_plugin.h"
#include "integration_tests/sharding/small_training.h"

namespace accelerate {

using Json = nlohmann::ordered_json;

struct ZeroJob {
  std::string shape = "2x2:h100";
  Json zero = nullptr;  ///< zero_optimization; null: replicas
  PrecisionType precision = PrecisionType::kNo;
  bool adam = false;
  int64_t accumulation = 1;
  double max_norm = 0;
  Json more = Json::object();  ///< of the configuration
};

inline Json config_of(const ZeroJob& job) {
  Json config = {{"train_micro_batch_size_per_gpu", 2},
                 {"gradient_accumulation_steps", job.accumulation},
                 {"gradient_clipping", job.max_norm},
                 {"zero_allow_untested_optimizer", true},
                 {"zero_optimization", job.zero}};
  config.merge_patch(job.more);
  return config;
}

inline AcceleratorOptions options_of(const ZeroJob& job) {
  AcceleratorOptions options{.mixed_precision = job.precision,
                             .gradient_accumulation_steps = job.accumulation};
  if (!job.zero.is_null()) {
    options.deepspeed_plugin = DeepSpeedPlugin{.hf_ds_config = config_of(job)};
  }
  return options;
}

inline Training training_of(const ZeroJob& job) {
  return {
      .shape = job.shape, .options = options_of(job), .adam = job.adam, .max_norm = job.max_norm};
}

template <typename Net>
Outcome train(const ZeroJob& job) {
  Outcome outcome = train_on_cluster<Net>(training_of(job));
  for (const double norm : outcome.norms) EXPECT_GT(norm, job.max_norm) << "nothing is clipped";
  return outcome;
}

/// An offload block.
inline Json on_host() { return {{"device", "cpu"}}; }

/// Every way to divide a model; stage 3 with parameters of at least so many elements.
inline std::vector<Json> ways() {
  std::vector<Json> ways;
  for (const int stage : {1, 2, 3}) {
    Json way = {{"stage", stage}};
    if (stage == 3) way["stage3_param_persistence_threshold"] = 50;
    ways.push_back(way);
    way["offload_optimizer"] = on_host();
    ways.push_back(way);
    if (stage < 3) continue;
    way["offload_param"] = on_host();
    ways.push_back(way);
  }
  Json second_shards = {
      {"stage", 3}, {"stage3_param_persistence_threshold", 0}, {"zero_hpz_partition_size", 2}};
  ways.push_back(second_shards);
  second_shards["offload_optimizer"] = on_host();
  ways.push_back(second_shards);
  second_shards["offload_param"] = on_host();
  ways.push_back(second_shards);
  ways.push_back({{"stage", 3},
                  {"stage3_param_persistence_threshold", 0},
                  {"stage3_max_live_parameters", 0},
                  {"sub_group_size", 1000}});
  return ways;
}

}  // namespace accelerate
