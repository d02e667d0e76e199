/// Ways to divide a training among ranks, drawn from seeds: the axes that a job may have together
/// (accelerate/base/rank_layout.h), ZeRO, accumulation, precision and recomputation. The model is
/// small enough that some hundred trainings take minutes.
///
/// Another axis is drawn as soon as the table of layouts allows it. What it needs of the model
/// (fits_model) and of the loop, as a pipeline's train_batch, is added here and in
/// integration_tests/experts/expert_training.cc.
/// Threads: functions of their arguments.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "accelerate/base/enums.h"
#include "accelerate/base/rank_layout.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/examples/lm/config.h"
#include "integration_tests/experts/expert_training.h"

namespace accelerate {

struct DrawnLayout {
  RankLayout ranks = {};
  int zero_stage = 0;  ///< where ranks.zero
  int micro_steps = 1;
  bool recomputes = false;
  std::optional<PrecisionType> precision = std::nullopt;
  lm::Blocks blocks = lm::Blocks::kLlama;
  int nodes = 1;  ///< ranks are divided among them

  /// "2x4:h100"
  std::string cluster() const;
  std::string text() const;
};

/// One of 8 or 16 ranks that the table allows. Equal seeds give equal layouts.
DrawnLayout draw_layout(uint64_t seed);

/// The same model and computation on one rank.
DrawnLayout one_rank_of(const DrawnLayout& layout);

/// Absent for one rank without ep.
std::optional<ParallelismOptions> sizes_of(const RankLayout& layout);

/// Its model; with ranks.experts each perceptron is 8 experts.
lm::Config model_of(const DrawnLayout& layout);

/// What its Accelerator is made with, besides the mesh and the accumulation.
void add_techniques(const DrawnLayout& layout, AcceleratorOptions& options);

/// Three steps of it.
ExpertTraining training_of(const DrawnLayout& layout);

}  // namespace accelerate
