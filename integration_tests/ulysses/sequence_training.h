/// Trainings of the language model of integration_tests/tensor on sequences of which ranks along sp
/// have parts.
///
/// Threads: the test's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "accelerate/accelerator_options.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/examples/lm/config.h"
#include "accelerate/examples/lm/model.h"
#include "integration_tests/tensor/token_losses.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {

struct SequenceTraining {
  lm::Config config = {};
  lm::LmOptions lm = {};
  /// Absent: one process.
  std::optional<ParallelismOptions> sizes = std::nullopt;
  std::string cluster = "1x1:h100";
  int steps = 10;
  int64_t rows = 8;  ///< of a step, over all shares of the data
  /// Changes what the Accelerator is made with.
  std::function<void(AcceleratorOptions&)> change = [](AcceleratorOptions&) {};
  /// Into how many backward passes each share's rows of a step are divided.
  int micro_steps = 1;
  /// Whether token i of row r has a label, where tokens differ in that. Then losses are sums that
  /// backward_tokens() divides; else each rank's mean.
  std::function<bool(int64_t row, int64_t token)> has_label = nullptr;
  /// With `has_label`: means over each rank's tokens, by mean_over_sequences(). All rows of a step
  /// have as many labels.
  bool weights_means = false;
  /// Where checkpoints are; null: in memory of the cluster alone.
  std::shared_ptr<simulator::SimDisk> disk = nullptr;
  /// The number of the first step. Unless it is 0, the state of the training before is loaded.
  int first_step = 0;
  /// Whether the state is saved at the end.
  bool saves = false;
};

/// Lets ZeRO divide the model. `micro_batch`: the rows of a share of the data.
std::function<void(AcceleratorOptions&)> with_zero(int stage, int micro_batch);

/// On one rank of a job, whatever runs it. Collective.
TokenShare train_rank_of_sequences(const SequenceTraining& training);

/// The same on a cluster. SGD with a learning rate of 0.1 and momentum 0.9, on gradients that are
/// clipped to norm 1.
TokenOutcome train_sequences(const SequenceTraining& training);

}  // namespace accelerate
