/// Training of the language model of the examples, with the weights and the text of
/// integration_tests/tensor/formula_model.h, on sequences that ranks along cp divide.
///
/// Threads: the rank's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "accelerate/accelerator_options.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/examples/lm/config.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/parallel/sequence/sequence_order.h"
#include "integration_tests/tensor/token_losses.h"

namespace accelerate {

struct ContextTraining {
  lm::Config config = {};
  lm::LmOptions lm = {.shares_key_heads = true};
  /// Absent: one process.
  std::optional<ParallelismOptions> sizes = std::nullopt;
  std::string cluster = "1x1:h100";
  SequenceOrder order = SequenceOrder::kBalanced;
  int steps = 10;
  int64_t rows = 8;  ///< of a step, over all shares of the data
  /// Changes what the Accelerator is made with.
  std::function<void(AcceleratorOptions&)> change = [](AcceleratorOptions&) {};
  /// Changes the labels of a step, int64 [rows, length]. If set, the loss is a sum over labels that
  /// are not -100, and gradients are those of the mean over them.
  std::function<void(at::Tensor& labels)> ignore = nullptr;
};

/// On one rank of a job, whatever runs it. Collective.
TokenShare train_rank_in_context(const ContextTraining& training);

/// The same on a cluster. SGD with a learning rate of 0.1 and momentum 0.9, on gradients that are
/// clipped to norm 1.
TokenOutcome train_in_context(const ContextTraining& training);

}  // namespace accelerate
